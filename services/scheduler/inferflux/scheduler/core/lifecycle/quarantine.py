"""Choice of the workers on which suspects run alone (pure).

On a worker where nothing runs. Mostly that is the one whose engine has just died and is starting again. If no
worker is idle, and none is starting, one is reserved: what runs there is parked until the suspects are done.
"""

from __future__ import annotations

from inferflux.scheduler.core.types.jobs import Job
from inferflux.scheduler.core.workers.placement import fits
from inferflux.scheduler.core.workers.slots import Start, WorkerSlots
from inferflux.v1 import scheduler_pb2

from .state import SchedulerState


class Quarantine:
    """Chooses workers for suspects. At most one of each model is reserved."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        # By model: worker id and incarnation.
        self._reserved: dict[str, tuple[str, str]] = {}

    @property
    def models(self) -> set[str]:
        """Models of which a worker is reserved."""
        return set(self._reserved)

    def choose(self, job: Job) -> WorkerSlots | None:
        """A worker on which the job would run alone; None if there is none now."""
        idle = [
            w for w in self._state.placement.live(job.model) if w.has_slot_for(Start.ALONE) and fits(job, w)
        ]
        return min(idle, key=lambda w: (not w.is_reserved, w.worker_id == job.retries.avoids), default=None)

    def reserve(self, model: str, job: Job | None, now: float) -> WorkerSlots | None:
        """The worker that is kept free for suspects; None if none is, or need be.

        Args:
            job: the first suspect that waits; None if none does. A reserved worker then serves others again.
        """
        reserved = self._reserved_worker(model)
        if job is None or (reserved is not None and not fits(job, reserved)):
            self._give_back(model, reserved)
            reserved = None
        if job is None:
            return None
        return reserved or self._take(job, now)

    def _reserved_worker(self, model: str) -> WorkerSlots | None:
        worker = self._state.table.get(*self._reserved.get(model, ("", "")))
        is_up = worker is not None and worker.state == scheduler_pb2.WORKER_STATE_READY
        if worker is not None and not is_up:
            self._give_back(model, worker)
        elif worker is None:
            self._reserved.pop(model, None)
        return worker if is_up else None

    def _take(self, job: Job, now: float) -> WorkerSlots | None:
        """Reserve the worker where the fewest run, unless one is at work for suspects, or soon will be."""
        workers = [w for w in self._state.placement.live(job.model) if fits(job, w)]
        if any(worker.alone is not None for worker in workers):
            return None
        is_starting = any(w.state == scheduler_pb2.WORKER_STATE_LOADING for w in workers)
        if is_starting and now - job.wait.queued_s < self._state.limits.reserve_after_s:
            return None
        ready = [w for w in workers if w.state == scheduler_pb2.WORKER_STATE_READY and not w.is_held]
        worker = min(ready, key=lambda w: w.n_running, default=None)
        if worker is not None:
            self._reserved[job.model] = (worker.worker_id, worker.incarnation)
            worker.reserve(is_on=True)
        return worker

    def _give_back(self, model: str, worker: WorkerSlots | None) -> None:
        self._reserved.pop(model, None)
        if worker is not None:
            worker.reserve(is_on=False)
            self._state.replan(worker)
