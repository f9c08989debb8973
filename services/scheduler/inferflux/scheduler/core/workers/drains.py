"""Workers that are to take nothing new (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from inferflux.v1 import scheduler_pb2

from .slots import WorkerSlots


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """Progress of a worker's drain; drained is one that has nothing and takes nothing."""

    residents: int
    is_drained: bool
    state: scheduler_pb2.WorkerState.ValueType


class Drains:
    """Workers that are to be drained, and the times at which their remaining requests go to others.

    A worker that was told says so with every heartbeat, so a scheduler that comes later knows as well; only
    the time of the handing over is then forgotten. One that ends says when.

    Args:
        longest_move_s: that requests of a worker that ends have to move with their state before it does.
    """

    def __init__(self, longest_move_s: float) -> None:
        self._longest_move_s = longest_move_s
        self._hand_over_s: dict[str, float | None] = {}
        self._incarnations: dict[str, str] = {}

    def holds(self, worker: WorkerSlots) -> bool:
        """True if this worker is to be drained: one that was started again is not."""
        return self._incarnations.get(worker.worker_id) == worker.incarnation

    def begin(self, worker: WorkerSlots, hand_over_s: float | None) -> None:
        """Args: hand_over_s: from when on what still runs goes to others; None lets it finish."""
        self._hand_over_s[worker.worker_id] = hand_over_s
        self._incarnations[worker.worker_id] = worker.incarnation

    def learn(self, worker: WorkerSlots, now: float) -> None:
        """Read from a worker's status whether it ends: for the last part of its time requests move, unless
        they are to do so sooner."""
        if not worker.is_leaving:
            return
        left_s = worker.status.leaves_in_ms / 1000
        ends_s = now + left_s - min(self._longest_move_s, left_s / 2)
        known_s = self._hand_over_s.get(worker.worker_id) if self.holds(worker) else None
        self.begin(worker, ends_s if known_s is None else min(known_s, ends_s))

    def end(self, worker_id: str) -> None:
        self._hand_over_s.pop(worker_id, None)
        self._incarnations.pop(worker_id, None)

    def due(self, now: float) -> Iterator[tuple[str, float]]:
        """Workers whose requests are to go to others now, and for how many seconds they have been."""
        for worker_id, hand_over_s in self._hand_over_s.items():
            if hand_over_s is not None and now >= hand_over_s:
                yield worker_id, now - hand_over_s


def progress_of(worker: WorkerSlots) -> DrainProgress:
    residents = len(worker.assignments) + len(worker.unowned)
    is_draining = worker.state == scheduler_pb2.WORKER_STATE_DRAINING
    return DrainProgress(residents, is_draining and residents == 0, worker.state)
