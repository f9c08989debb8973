"""From one state of a job to the next (pure).

The one place where jobs change hands: between the queue, the workers' slots and their end. Each job ends
exactly once: by the worker, which publishes the terminal chunk and says so, or here, by `conclude`. Both come
together in `end`, which acknowledges the job.
"""

from __future__ import annotations

from inferflux.v1 import worker_pb2

from . import actions, outcomes
from .actions import Action
from .announcements import Announcements
from .emitted import outcome_of
from .fairness import FairnessController
from .jobs import Conclusion, Job, JobState, Loss, RequestKey
from .limits import Limits
from .memory import Recent
from .placement import Placement, cells_wanted_on
from .queue import Queue
from .slots import Residence, SlotTable, Stray, WorkerSlots
from .suspects import Blame


class Lifecycle:
    """Every job between its arrival and its end, the queue and the slot table.

    Args:
        term: of the lease under which this scheduler leads.
    """

    def __init__(self, limits: Limits, queue: Queue, fairness: FairnessController, *, term: int) -> None:
        self.limits = limits
        self.term = term
        self.queue = queue
        self.fairness = fairness
        self.table = SlotTable()
        self.placement = Placement()
        self.announcements = Announcements()
        self.jobs: dict[RequestKey, Job] = {}
        # The job that is being handled: the one to blame for an exception.
        self.in_hand: Job | None = None
        # Whether it is known who lives and what runs: until then nothing is dispatched.
        self.is_settled = False
        # Models to plan for, and jobs that have not been through a plan since they were queued.
        self.unplanned: set[str] = set()
        self.fresh: list[Job] = []
        # Ids of workers that may have a turn for what waits on them.
        self.have_turns: set[str] = set()
        # Ends of inherited jobs, put off until it is known whether a worker has them.
        self.deferred: list[tuple[Job, Conclusion]] = []
        # Those that ended, and their places in the work queue.
        self.ended: Recent[RequestKey, int] = Recent(limits.remembered_jobs)

    def enqueue(self, job: Job, now: float) -> list[Action]:
        self.in_hand = job
        job.queued_s = now
        if job.is_expired(now):
            return self.conclude(job, outcomes.expired())
        if why := self.placement.why_never(job):
            return self.conclude(job, outcomes.too_large(why))
        return self.wait(job)

    def wait(self, job: Job) -> list[Action]:
        if not job.is_queued:
            self.leave_queue(job)
            job.state = JobState.QUEUED
            self.queue.push(job)
            self.unplanned.add(job.model)
            self.fresh.append(job)
        return []

    def read(self, job: Job) -> Action:
        job.state = JobState.READING
        job.read_id += 1
        return actions.ReadReplay(job.key, job.read_id)

    def leave_queue(self, job: Job) -> None:
        """It does not wait any more, if it did."""
        if job.is_waiting:
            self.announcements.forget(job)
            self.queue.discard(job)
            job.state = JobState.NEW

    def accept(self, job: Job, now: float) -> list[Action]:
        """The worker has it, and it runs there."""
        self.in_hand = job
        worker = self.worker_of(job)
        if worker is None or job.state is not JobState.DISPATCHING:
            return []
        worker.owners[job.key].is_accepted = True
        self.on_running(job, now)
        return [actions.TellCancel(job.key, job.attempt_id)] if job.is_cancelled else []

    def on_running(self, job: Job, now: float) -> None:
        job.state = JobState.RUNNING
        job.is_resuming = False
        job.progressed_s = now
        self.fairness.on_running(job)

    def end_turn(
        self, worker: WorkerSlots, job: Job, residence: Residence, reason: str, now: float
    ) -> list[Action]:
        """The worker says that it does not run any more."""
        self.in_hand = job
        worker.park(job.key, residence, is_confirmed=True)
        self.to_parked(job, now)
        self.placement.update(worker)
        self.replan(worker)
        return [actions.Yielded(job.key, job.handle, worker.worker_id, reason)]

    def to_parked(self, job: Job, now: float) -> None:
        """To the queue, while it stays on board."""
        self.fairness.on_stopped(job)
        job.parked_s = now
        self.wait_there(job)

    def wait_there(self, job: Job) -> None:
        worker = self.worker_of(job)
        if worker is not None and worker.owners[job.key].is_running:  # it could not be told to go on
            worker.park(job.key, is_confirmed=False)
            self.placement.update(worker)
        self.queue.give_place_back(job)
        job.is_resuming = False
        job.state = JobState.PARKED
        job.queued_s = max(job.queued_s, job.parked_s)
        self.queue.push(job)
        self.unplanned.add(job.model)

    def take_back(self, worker: WorkerSlots, job: Job, now: float) -> list[Action]:
        """It runs, although it was to wait: the worker has not heard, or let it go on."""
        self.in_hand = job
        if job.state is not JobState.PARKED:
            return []
        if worker.owners[job.key].slot is None and not worker.has_slot:
            return self.lose(job, Loss.VANISHED, now, must_drop=True)
        self.leave_queue(job)
        self.queue.take_place(job)
        rank = self.fairness.rank(job)
        worker.resume(job.key, cells_wanted_on(job, worker), rank, is_alone=job.is_suspect)
        self.placement.update(worker)
        self.on_running(job, now)
        return []

    def put_back(self, job: Job, now: float) -> list[Action]:
        """To the queue again; no worker has it, so its epoch stands."""
        self.release(job)
        if job.is_cancelled:
            return self.conclude(job, outcomes.cancelled(job, now))
        return self.enqueue(job, now)

    def lose(
        self,
        job: Job,
        cause: Loss,
        now: float,
        *,
        must_drop: bool = False,
        blame: Blame = Blame.NONE,
    ) -> list[Action]:
        """A worker does not have it any more, or must not have it: to the queue, in its next epoch.

        Args:
            must_drop: the worker may still have it, and is told to drop it.
            blame: whether it may have caused the loss.
        """
        self.in_hand = job
        if job.state is JobState.READING:  # it never got there
            return self.put_back(job, now)
        out: list[Action] = [actions.CountRetry(job.key, cause.value, job.handle)]
        job.avoids = job.worker_id
        if must_drop and job.worker_id is not None:
            out.append(self.drop(job.worker_id, job.key, job.epoch))
        self.leave_queue(job)
        self.release(job)
        job.next_epoch()
        job.retries += cause.counts
        job.is_suspect |= blame is not Blame.NONE
        conclusion = self._conclusion_after(job, cause, blame, now)
        return out + (self.enqueue(job, now) if conclusion is None else self.conclude(job, conclusion))

    def clear(self, job: Job) -> None:
        """A suspect has run past the point at which its engine died: it is like others again."""
        is_waiting = job.is_waiting
        if is_waiting:
            self.queue.discard(job)
        job.is_suspect = False
        job.retries = 0
        if is_waiting:
            self.queue.push(job)
            self.unplanned.add(job.model)
        worker = self.worker_of(job)
        if worker is not None:
            worker.admit_others(job.key)
            self.placement.update(worker)
            self.replan(worker)

    def _conclusion_after(self, job: Job, cause: Loss, blame: Blame, now: float) -> Conclusion | None:
        """Why a lost job is not to be tried again."""
        if job.is_cancelled:
            return outcomes.cancelled(job, now)
        if blame is Blame.CONVICTED:
            return outcomes.poison(job)
        if job.retries > self.limits.max_retries:
            return outcomes.retries_exhausted(job, cause.value)
        return None

    def conclude(self, job: Job, conclusion: Conclusion) -> list[Action]:
        """End it here, with a terminal chunk of the scheduler's own; but first find out, where it may run or
        have run, whether it has not ended already."""
        self.in_hand = job
        if job.is_inherited and not self.is_settled:
            self.deferred.append((job, conclusion))
            return self.wait(job)
        self.leave_queue(job)
        self.release(job)
        job.conclusion = conclusion
        if job.needs_replay:
            return [] if job.state is JobState.READING else [self.read(job)]
        chunk = outcomes.terminal_chunk(job, conclusion)
        return [actions.PublishChunk(job.key, chunk), *self.end(job, outcome_of(chunk))]

    def end(self, job: Job, outcome: str) -> list[Action]:
        """Its terminal chunk is out."""
        self.leave_queue(job)
        self.release(job)
        job.state = JobState.ENDED
        del self.jobs[job.key]
        self.ended.remember(job.key, job.sequence)
        return [actions.Ack(job.handle, job.model, outcome)]

    def release(self, job: Job) -> None:
        """Take it off its worker, if one has it."""
        self.fairness.on_stopped(job)
        self.queue.give_place_back(job)
        worker = self.worker_of(job)
        job.worker_id = None
        if worker is not None:
            worker.release(job.key)
            self.placement.update(worker)
            self.replan(worker)

    def adopt(self, job: Job, worker: WorkerSlots, stray: Stray, now: float) -> None:
        """It runs already: take note where."""
        self.in_hand = job
        self.leave_queue(job)
        self.release(job)
        worker.adopt(stray, cells_wanted_on(job, worker), self.fairness.rank(job))
        job.read_id += 1
        job.conclusion = None
        job.is_inherited = False
        job.is_adopted = True
        job.epoch = stray.epoch
        job.worker_id = worker.worker_id
        job.dispatched_s = job.dispatched_s or now
        self.placement.update(worker)
        if stray.residence is Residence.RUNNING:
            self.queue.take_place(job)
            self.on_running(job, now)
        else:
            self.to_parked(job, now)

    def worker_of(self, job: Job) -> WorkerSlots | None:
        return self.table.get(job.worker_id) if job.worker_id is not None else None

    def hold_worker(self, worker_id: str) -> None:
        if (worker := self.table.get(worker_id)) is not None:
            worker.is_held = True
            self.placement.update(worker)

    def replan(self, worker: WorkerSlots) -> None:
        can_resume = worker.can_resume
        if can_resume:
            self.have_turns.add(worker.worker_id)
        for model in worker.context_lengths:
            queue = self.queue.models.get(model)
            if queue and (can_resume or queue.has_suspects):
                self.unplanned.add(model)

    def drop(self, worker_id: str, key: RequestKey, epoch: int) -> Action:
        command = worker_pb2.WorkerCommand()
        command.drop.request_id = key.request_id
        command.drop.tenant = key.tenant
        command.drop.epoch = epoch
        return self.command(worker_id, command)

    def command(self, worker_id: str, command: worker_pb2.WorkerCommand) -> Action:
        command.term = self.term
        return actions.SendCommand(worker_id, command)
