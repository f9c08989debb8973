"""The table of workers that live, and those that a standby knows of (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from inferflux.common.contract.known_workers import MAX_WORKERS, SILENT_S
from inferflux.v1 import scheduler_pb2

from .slots import WorkerSlots


class Listener(Protocol):
    """Listener that is told of every change of the table."""

    def changed(self, worker: WorkerSlots) -> None: ...

    def removed(self, worker: WorkerSlots) -> None: ...


class SlotTable:
    """Every worker that lives.

    Args:
        listener: told of every change.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._workers: dict[str, WorkerSlots] = {}

    @property
    def workers(self) -> Mapping[str, WorkerSlots]:
        return self._workers

    def add(self, status: scheduler_pb2.WorkerStatus, now: float) -> WorkerSlots:
        """A worker reported for the first time."""
        worker = self._workers[status.worker_id] = WorkerSlots(status, now, self._listener.changed)
        self._listener.changed(worker)
        return worker

    def remove(self, worker: WorkerSlots) -> None:
        """A worker is gone."""
        del self._workers[worker.worker_id]
        self._listener.removed(worker)

    def get(self, worker_id: str, incarnation: str | None = None) -> WorkerSlots | None:
        """The worker, if it lives and is still the one of that incarnation."""
        worker = self._workers.get(worker_id)
        if worker is None or (incarnation is not None and worker.incarnation != incarnation):
            return None
        return worker

    def silent(self, now: float, dead_after_s: float) -> Iterable[WorkerSlots]:
        """Workers not seen for too long."""
        return [w for w in self._workers.values() if now - w.last_seen_s > dead_after_s]

    def reset_liveness(self, until_s: float) -> None:
        """Count no worker's silence before `until_s`: it could not be seen."""
        for worker in self._workers.values():
            worker.last_seen_s = max(worker.last_seen_s, until_s)


class LiveWorkers:
    """Workers that sent a heartbeat, and when the last came, in seconds of the caller's clock."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, float]] = {}

    def on_heartbeat(self, status: scheduler_pb2.WorkerStatus, now: float) -> None:
        if status.worker_id not in self._seen and len(self._seen) >= MAX_WORKERS:
            self.live(now, SILENT_S)
        self._seen[status.worker_id] = status.incarnation, now

    def on_left(self, worker_id: str, incarnation: str) -> None:
        if self._seen.get(worker_id, ("", 0.0))[0] == incarnation:
            del self._seen[worker_id]

    def live(self, now: float, dead_after_s: float) -> set[str]:
        """Return the workers whose last heartbeat is less than `dead_after_s` seconds old; the others are
        forgotten."""
        self._seen = {w: seen for w, seen in self._seen.items() if now - seen[1] < dead_after_s}
        return set(self._seen)
