"""Commands of operators to workers, and the actions that follow from them (pure)."""

from __future__ import annotations

from inferflux.common.contract.errors import NotFound
from inferflux.common.contract.partitions import UNKNOWN_WORKER
from inferflux.scheduler.core.types.actions import Action
from inferflux.scheduler.core.types.jobs import JobState, RequestKey
from inferflux.scheduler.core.types.moves import Move, Why
from inferflux.scheduler.core.workers.drains import DrainProgress, Drains, progress_of
from inferflux.scheduler.core.workers.slots import WorkerSlots
from inferflux.v1 import scheduler_pb2, worker_pb2

from .moves import Moves
from .state import SchedulerState


class WorkerCommands:
    """Drains workers, moves requests, and has caches cleared."""

    def __init__(self, state: SchedulerState, drains: Drains, moves: Moves) -> None:
        self._state = state
        self._moves = moves
        self._drains = drains

    def drain(
        self, worker_id: str, *, now: float, undo: bool = False, hand_over_after_s: float | None = None
    ) -> list[Action]:
        """Have a worker take nothing new, or take requests again.

        Args:
            hand_over_after_s: when what it still has goes to other workers; None lets it finish.

        Raises:
            NotFound: no such worker is alive.
        """
        worker = self._worker_named(worker_id)
        command = worker_pb2.WorkerCommand()
        if undo:
            self._drains.end(worker_id)
            command.undrain.SetInParent()
        else:
            self._drains.begin(worker, None if hand_over_after_s is None else now + hand_over_after_s)
            worker.set_state(scheduler_pb2.WORKER_STATE_DRAINING)
            command.drain.SetInParent()
        return [self._state.command(worker_id, command)]

    def drain_progress(self, worker_id: str) -> DrainProgress:
        """Raises NotFound when no such worker is alive."""
        return progress_of(self._worker_named(worker_id))

    def clear_cache(self, worker_id: str, clear: scheduler_pb2.ClearCache) -> worker_pb2.WorkerCommand:
        """The command that has a worker give cached prefixes up; its answer changes nothing here.

        Raises:
            NotFound: no such worker is alive.
        """
        self._worker_named(worker_id)
        return worker_pb2.WorkerCommand(clear_cache=clear, term=self._state.term)

    def _worker_named(self, worker_id: str) -> WorkerSlots:
        worker = self._state.table.get(worker_id)
        if worker is None:
            raise NotFound(f"no worker {worker_id} is alive", reason=UNKNOWN_WORKER)
        return worker

    def move(self, key: RequestKey, worker_id: str, *, now: float) -> tuple[list[Action], RequestKey, Move]:
        """Have another worker go on with a request; as `Moves.begin_named`."""
        return self._moves.begin_named(key, worker_id, now)

    def hand_over(self, now: float) -> list[Action]:
        """The requests that a worker still has when its drain is due go to others: their state first, for a
        while. One that ends leaves them by itself then, so no other way is tried."""
        out: list[Action] = []
        for worker_id, since_s in list(self._drains.due(now)):
            worker = self._state.table.get(worker_id)
            if worker is None or not self._drains.holds(worker):
                continue
            has_time = since_s < self._state.limits.move_limit_s
            for job in [self._state.jobs[key] for key in worker.assignments]:
                if has_time and not self._state.moves.may_leave(worker_id):
                    break
                if job.state in (JobState.RUNNING, JobState.PARKED) and not (job.is_cancelled or job.move):
                    to = self._state.placement.choose(job) if has_time else None
                    if not worker.is_leaving or self._moves.has_way(job, worker, to):
                        out += self._moves.leave(job, to, Why.DRAIN, now)
        return out
