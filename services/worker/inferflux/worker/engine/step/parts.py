"""Parts of an engine: each is a feature that some requests use, and the step walks them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from inferflux.common.contract.errors import InferFluxError
from inferflux.v1 import engine_pb2, scheduler_pb2
from inferflux.worker.engine.plan.planner import StepPlan
from inferflux.worker.engine.plan.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a sequence.

    Attributes:
        error: why it fails; None: its answer is complete.
        mismatch: why a complete answer is not what was asked for; "" if it is.
    """

    sequence: Sequence
    error: InferFluxError | None = None
    mismatch: str = ""


class Part:
    """A feature of an engine; each has those of these methods that it needs."""

    def begin(self, sequence: Sequence, request: scheduler_pb2.InferenceRequest) -> None:
        """Take a new sequence up.

        Raises:
            InferFluxError: its request cannot be served.
        """

    def poll(self, _now_s: float) -> Iterable[Outcome]:
        """Before a step: let sequences run that wait for nothing more; returns those that end instead.

        Args:
            now_s: monotonic clock.
        """
        return ()

    @property
    def holds(self) -> Collection[Sequence]:
        """Sequences that no step may hold yet."""
        return ()

    @property
    def is_busy(self) -> bool:
        """True if `poll` is to be called soon, even while nothing runs."""
        return False

    def extend(self, plan: StepPlan, empty_cells: int) -> None:
        """Add to a step what is worth its time, in `empty_cells`."""

    def end(self, sequence: Sequence) -> None:
        """A sequence leaves."""

    def stats(self, step: engine_pb2.StepReport) -> None:
        """Write into a report what happened since the last one."""

    def close(self) -> None:
        """The engine ends."""
