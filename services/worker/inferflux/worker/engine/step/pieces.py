"""State that leaves and comes in pieces, as a part of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from inferflux.v1 import engine_pb2, scheduler_pb2
from inferflux.worker.engine.memory.exports import ExportCache, Exports
from inferflux.worker.engine.memory.imports import Imports
from inferflux.worker.engine.memory.memory import Memory
from inferflux.worker.engine.memory.saved import SavedStates
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.tiers.tiers import Tiers

from .parts import Outcome, Part


class Pieces(Part):
    """Exports and imports.

    Args:
        residents, clock_s, longest_s: as of `Exports`.
    """

    def __init__(
        self,
        cache: ExportCache,
        memory: Memory,
        saved: SavedStates,
        tiers: Tiers[Sequence],
        *,
        residents: Mapping[str, Sequence],
        clock_s: Callable[[], float],
        longest_s: float,
    ) -> None:
        self.exports = Exports(
            cache, memory, saved, tiers, residents=residents, clock_s=clock_s, longest_s=longest_s
        )
        self._imports = Imports(memory.taken, memory.prefixes, saved, tiers.pieces, clock_s)

    def begin(self, sequence: Sequence, _request: scheduler_pb2.InferenceRequest) -> None:
        self._imports.begin(sequence)

    def poll(self, _now_s: float) -> Iterable[Outcome]:
        if len(self.exports):
            self.exports.poll()
        self._imports.poll()
        return ()

    @property
    def is_busy(self) -> bool:
        return self.exports.is_busy or self._imports.is_busy

    @property
    def are_any(self) -> bool:
        """True if any is under way."""
        return len(self.exports) + len(self._imports) > 0

    @property
    def has_news(self) -> bool:
        """True if there is something to report of them."""
        return bool(self.exports.news or self._imports.news)

    def obey(self, command: engine_pb2.EngineCommand) -> None:
        """Begin, go on with or end an export or an import."""
        if command.HasField("export_state"):
            self.exports.obey(command.export_state)
        else:
            self._imports.obey(command.import_state)

    def end(self, sequence: Sequence) -> None:
        self.exports.end(sequence)
        self._imports.end(sequence)

    def stats(self, step: engine_pb2.StepReport) -> None:
        step.pieces.extend(self.exports.news)
        step.imported.extend(self._imports.news)
        self.exports.news, self._imports.news = [], []

    def close(self) -> None:
        self.exports.close()
        self._imports.close()
