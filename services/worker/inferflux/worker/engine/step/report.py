"""Report that the engine's parent gets next, filled as things happen."""

from __future__ import annotations

from inferflux.v1 import engine_pb2, scheduler_pb2
from inferflux.worker.engine.plan.sequence import Sequence

from . import chunks


class Report:
    """Collects one report after the other.

    Attributes:
        has_news: whether there is anything to tell.
        step: the report's own part, for what has no method here.
    """

    def __init__(self) -> None:
        self._begin()

    def take(self) -> engine_pb2.EngineReport:
        """All that has come up; the next report begins."""
        whole = self._whole
        self._begin()
        return whole

    def emit(self, sequence: Sequence, chunk: bytes) -> None:
        """The next chunk of a sequence's token stream, serialized, without its head."""
        # One field after the other: keywords take almost twice as long.
        emission = self.step.emissions.add()
        emission.key = sequence.key
        emission.chunk = sequence.chunk_head + chunk
        emission.generated_tokens = sequence.generated
        emission.epoch = sequence.epoch

    def finished(self, sequence: Sequence, outcome: str) -> None:
        """A sequence has had its last chunk."""
        self.step.finished.append(chunks.ended(sequence, outcome))

    def computed(self, sequence: Sequence) -> None:
        """Report a change in how much of a sequence is computed that no token of its answer brought."""
        self.step.prefilled.add(key=sequence.key, epoch=sequence.epoch, computed_tokens=sequence.position)

    def residence(
        self,
        sequence: Sequence,
        reason: scheduler_pb2.YieldReason.ValueType = scheduler_pb2.YIELD_REASON_UNSPECIFIED,
    ) -> None:
        """Report where a sequence is now, and why it does not run."""
        self.has_news = True
        self.step.residences.add(
            key=sequence.key,
            epoch=sequence.epoch,
            run=sequence.run,
            residence=sequence.residence,
            slot=sequence.slot or 0,
            reason=reason,
            generated_tokens=sequence.generated,
        )

    def _begin(self) -> None:
        self._whole = engine_pb2.EngineReport()
        self._whole.step.SetInParent()
        # Written where it is: putting it there later would be a copy.
        self.step = self._whole.step
        self.has_news = False
