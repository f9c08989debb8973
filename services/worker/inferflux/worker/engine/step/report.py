"""Report that the engine's parent gets next, filled as things happen."""

from __future__ import annotations

from typing import Protocol

from inferflux.v1 import engine_pb2, scheduler_pb2


class Reported(Protocol):
    """A resident request as far as reports go."""

    key: str
    epoch: int
    slot: int | None
    run: int

    @property
    def chunk_head(self) -> bytes:
        """What all its chunks begin with, serialized."""

    @property
    def generated(self) -> int:
        """Number of its generated tokens."""

    @property
    def position(self) -> int:
        """Number of its tokens that are computed."""

    @property
    def residence(self) -> scheduler_pb2.Residence.ValueType:
        """Where it is."""


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

    def emit(self, resident: Reported, chunk: bytes) -> None:
        """The next chunk of a resident's token stream, serialized, without its head."""
        # One field after the other: keywords take almost twice as long.
        emission = self.step.emissions.add()
        emission.key = resident.key
        emission.chunk = resident.chunk_head + chunk
        emission.generated_tokens = resident.generated
        emission.epoch = resident.epoch

    def computed(self, resident: Reported) -> None:
        """Report a change in how much of a resident is computed that no token of its answer brought."""
        self.step.prefilled.add(key=resident.key, epoch=resident.epoch, computed_tokens=resident.position)

    def residence(
        self,
        resident: Reported,
        reason: scheduler_pb2.YieldReason.ValueType = scheduler_pb2.YIELD_REASON_UNSPECIFIED,
    ) -> None:
        """Report where a resident is now, and why it does not run."""
        self.has_news = True
        self.step.residences.add(
            key=resident.key,
            epoch=resident.epoch,
            run=resident.run,
            residence=resident.residence,
            slot=resident.slot or 0,
            reason=reason,
            generated_tokens=resident.generated,
        )

    def _begin(self) -> None:
        self._whole = engine_pb2.EngineReport()
        self._whole.step.SetInParent()
        # Written where it is: putting it there later would be a copy.
        self.step = self._whole.step
        self.has_news = False
