"""Requests on their way from one worker to another (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.jobs import Job, RequestKey
from inferflux.scheduler.core.types.moves import Move

from .slot_table import SlotTable
from .slots import WorkerSlots

# At a time from one worker, and to one: more would share the same memory and network. Splits do not count.
MOST_OF_A_WORKER = 4


class MoveTable:
    """Every move that has begun and not ended. The target keeps a slot and cells for the request."""

    def __init__(self, table: SlotTable) -> None:
        self._table = table
        self._jobs: dict[RequestKey, Job] = {}
        self._following: dict[RequestKey, Job] = {}
        # Moves from and to each worker, without splits.
        self._leaving: Counter[str] = Counter()
        self._coming: Counter[str] = Counter()
        self._ended: list[actions.MoveEnded] = []

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def jobs(self) -> Collection[Job]:
        """Jobs that move, in the order in which their moves began."""
        return tuple(self._jobs.values())

    @property
    def following(self) -> Collection[Job]:
        """Jobs that have left for their targets and do not run there yet: a few of thousands that move."""
        return tuple(self._following.values())

    def follow(self, job: Job) -> None:
        """A job leaves its old worker now; nothing if it does not move."""
        if job.move is not None:
            job.move.follow()
            self._following[job.key] = job

    def to(self, worker: WorkerSlots) -> list[Job]:
        """Return the jobs that move to this worker."""
        return [self._jobs[key] for key in worker.awaited]

    def has_turn(self, from_id: str, to_id: str) -> bool:
        """True if one more may begin between these workers."""
        return self.may_leave(from_id) and self._coming[to_id] < MOST_OF_A_WORKER

    def may_leave(self, worker_id: str) -> bool:
        """True if one more may begin from this worker."""
        return self._leaving[worker_id] < MOST_OF_A_WORKER

    def _count(self, move: Move, n: int) -> None:
        for counts, worker_id in ((self._leaving, move.from_id), (self._coming, move.to_id)):
            counts[worker_id] += 0 if move.is_split else n
            if not counts[worker_id]:
                del counts[worker_id]

    def begin(self, job: Job, move: Move, cells: int) -> None:
        """A job is to move. Raises KeyError if no worker of the target's name lives.

        Args:
            cells: that the target keeps for it.
        """
        self._table.workers[move.to_id].await_request(job.key, cells)
        self._jobs[job.key] = job
        job.move = move
        self._count(move, 1)

    def arrive(self, job: Job) -> WorkerSlots | None:
        """Return the worker that a job follows its state to. The slot that was kept there is free now; None
        if that worker is gone."""
        move = job.move
        worker = None if move is None else self._table.get(move.to_id, move.to_incarnation)
        if worker is not None:
            worker.await_request(job.key, None)
        return worker

    def end(self, job: Job, outcome: str) -> WorkerSlots | None:
        """A move is over. Returns its target, if that lives; None too where the job did not move."""
        move = job.move
        if move is None:
            return None
        worker = self.arrive(job)
        del self._jobs[job.key]
        self._count(move, -1)
        self._following.pop(job.key, None)
        job.move = None
        move.end(outcome)
        self._ended.append(actions.MoveEnded(job.key, job.handle, move))
        return worker

    def take_ended(self) -> list[actions.MoveEnded]:
        """Take the moves that have ended since this was asked last."""
        ended, self._ended = self._ended, []
        return ended
