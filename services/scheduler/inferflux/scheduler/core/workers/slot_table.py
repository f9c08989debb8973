"""The table of workers that live (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

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
