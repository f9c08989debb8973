"""The scheduler's state, and the transitions of a job (pure).

The one place where jobs change hands: between the queue, the workers' slots and their end. Each job finishes
exactly once: on a worker, which publishes the terminal chunk and reports it, or here, by `finish`. Both lead
to `acknowledge`, which takes the job off the work queue.

Only methods of `SchedulerState` change its fields. Others read them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from typing import Final

from inferflux.scheduler.core.types import actions, outcomes
from inferflux.scheduler.core.types.actions import Action
from inferflux.scheduler.core.types.announcements import Announcements
from inferflux.scheduler.core.types.facets import RequeueReason, TerminalEvent
from inferflux.scheduler.core.types.jobs import Job, JobState, RequestKey
from inferflux.scheduler.core.types.limits import Limits
from inferflux.scheduler.core.types.memory import Recent
from inferflux.scheduler.core.types.moves import DONE
from inferflux.scheduler.core.types.replayed import outcome_of
from inferflux.scheduler.core.workers.assignments import Residence, UnownedRequest
from inferflux.scheduler.core.workers.move_table import MoveTable
from inferflux.scheduler.core.workers.placement import Placement, cells_wanted_on
from inferflux.scheduler.core.workers.slot_table import SlotTable
from inferflux.scheduler.core.workers.slots import Start, WorkerSlots
from inferflux.v1 import worker_pb2

from .batches import deschedule_of
from .fairness import FairnessController, FairnessSettings
from .killer_images import KillerImages
from .queue import Queue
from .suspects import Blame


class SchedulerState:
    """Every job between its arrival and its end, the queue and the slot table.

    Args:
        term: of the lease under which this scheduler leads.
    """

    def __init__(self, limits: Limits, queue: Queue, fairness: FairnessController, *, term: int) -> None:
        self.limits: Final = limits
        self.term: Final = term
        self.queue: Final = queue
        self.fairness: Final = fairness
        self.placement: Final = Placement()
        self.table: Final = SlotTable(self.placement)
        self.moves: Final = MoveTable(self.table)
        self.announcements: Final = Announcements()
        self.killer_images: Final = KillerImages()
        self._jobs: dict[RequestKey, Job] = {}
        self._handled: Job | None = None
        self._is_settled = False
        self._inherited_s = -inf
        # Models to plan for, and jobs that have not been through a plan since they were queued.
        self._unplanned: set[str] = set()
        self._fresh: list[Job] = []
        # Terminal events of inherited jobs, put off until it is known whether a worker has the job.
        self._deferred: list[tuple[Job, TerminalEvent]] = []
        # Finished jobs, and their places in the work queue.
        self._finished: Recent[RequestKey, int] = Recent(limits.remembered_jobs)

    # What it holds

    @property
    def jobs(self) -> Mapping[RequestKey, Job]:
        """Every job that has not finished."""
        return self._jobs

    def add(self, job: Job, now: float) -> None:
        """A job came from the work queue."""
        self._jobs[job.key] = job
        if job.replay.is_inherited:
            self._inherited_s = now

    def is_unclaimed(self, since_s: float, now: float) -> bool:
        """True if a request that a worker has since `since_s` has no job. Those of a long queue come for a
        while after a takeover."""
        return now - since_s >= self.limits.unowned_grace_s and self.has_inherited_all(now)

    def has_inherited_all(self, now: float) -> bool:
        """True if no more jobs of an earlier scheduler seem to come."""
        return self._is_settled and now - self._inherited_s >= self.limits.unowned_grace_s

    def has_finished(self, key: RequestKey, sequence: int | None = None) -> bool:
        """True if a job of this key has finished lately.

        Args:
            sequence: its place in the work queue; None for any job of the key.
        """
        finished = self._finished.get(key)
        return finished is not None and sequence in (None, finished)

    @property
    def handled(self) -> Job | None:
        """The job that is being handled: the one to blame for an exception."""
        return self._handled

    def handle(self, job: Job | None) -> None:
        """Set the job that is being handled from now on; None: no job is."""
        self._handled = job

    @property
    def is_settled(self) -> bool:
        """True if the workers and what they run are known: until then nothing is dispatched."""
        return self._is_settled

    def settle(self) -> list[Action]:
        """The workers are known: inherited jobs that none of them has may finish."""
        self._is_settled = True
        self.replan_all()
        deferred, self._deferred = self._deferred, []
        out: list[Action] = []
        for job, terminal_event in deferred:
            if job.replay.is_inherited and job.is_queued:
                out += self.finish(job, terminal_event)
        return out

    # Workers

    def remove_worker(self, worker: WorkerSlots) -> list[Job]:
        """A worker is gone. Returns the jobs that it had; they are still to be requeued."""
        for job in self.moves.to(worker):
            self.end_move(job, "gone")
        self.table.remove(worker)
        return [self._jobs[key] for key in worker.assignments]

    def set_fairness(self, settings: FairnessSettings) -> None:
        """Go by these from the next plan on."""
        self.fairness.settings = settings
        self.queue.sort()
        self.replan_all()

    # What a plan is due for

    @property
    def must_plan(self) -> bool:
        """True if a plan could do anything now."""
        return self._is_settled and bool(self._unplanned or self._fresh)

    def replan_models(self, models: Collection[str]) -> None:
        """Something may have changed for these models' queues."""
        self._unplanned.update(models)

    def replan_all(self) -> None:
        """Something may have changed for every queue."""
        self._unplanned.update(self.queue.models)

    def take_unplanned(self) -> set[str]:
        """Models to plan for; a plan for them is made now."""
        models, self._unplanned = self._unplanned, set()
        return models

    def take_fresh(self) -> list[Job]:
        """Jobs that were queued since the last plan."""
        fresh, self._fresh = self._fresh, []
        return fresh

    # Transitions

    def enqueue(self, job: Job, now: float) -> list[Action]:
        self.handle(job)
        job.wait.begin(now)
        if job.is_expired(now):
            return self.finish(job, outcomes.expired())
        if why := self.placement.why_never(job) or self.killer_images.why_not(job, now):
            return self.finish(job, outcomes.impossible(why))
        return self.wait(job)

    def wait(self, job: Job) -> list[Action]:
        if not job.is_queued:
            self.leave_queue(job)
            job.state = JobState.QUEUED
            self.queue.push(job)
            self._unplanned.add(job.model)
            self._fresh.append(job)
        return []

    def read(self, job: Job) -> Action:
        job.state = JobState.READING
        job.replay = job.replay.begun()
        is_asked = job.replay.terminal_event is None and not job.follows_to(job.worker_id)
        return actions.ReadReplay(job.key, job.replay.read_id, job.request if is_asked else None)

    def leave_queue(self, job: Job) -> None:
        """Take a job out of the queue, if it is in it."""
        if job.is_queued:
            self.announcements.forget(job)
            self.queue.discard(job)
            job.state = JobState.NEW

    def accept(self, job: Job, now: float) -> list[Action]:
        """The worker has it, and it runs there."""
        self.handle(job)
        worker = self.worker_of(job)
        if worker is None or job.state is not JobState.DISPATCHING:
            return []
        worker.assignments[job.key].is_accepted = True
        self.on_running(job, now)
        if job.follows_to(job.worker_id):
            self.end_move(job, DONE)
        return [actions.TellCancel(job.key, job.attempt_id)] if job.is_cancelled else []

    def on_running(self, job: Job, now: float) -> None:
        job.state = JobState.RUNNING
        job.stay.run(now)
        self.fairness.on_running(job)

    def end_run(self, worker: WorkerSlots, job: Job, reason: str, now: float) -> list[Action]:
        """The worker reports that it does not run any more."""
        self.handle(job)
        if job.is_suspect:  # to run alone, it may have to go elsewhere
            return self.requeue(job, RequeueReason.MOVED, now, must_drop=True)
        self.deschedule(worker, job, now)
        self.replan(worker)
        return [actions.Yielded(job.key, job.handle, worker.worker_id, reason)]

    def deschedule(self, worker: WorkerSlots, job: Job, now: float) -> None:
        """Let a job wait to resume on its worker from now on."""
        if job.is_split:  # its worker goes on with it
            self.end_move(job, "over")
        job.stay.park(now)
        self.wait_to_resume(worker, job)

    def wait_to_resume(self, worker: WorkerSlots, job: Job) -> None:
        """Let a job wait, or go on waiting, to resume on its worker."""
        worker.deschedule(job.key)
        self.fairness.on_stopped(job)
        self.queue.give_place_back(job)
        job.stay.stop_resuming()
        job.state = JobState.PARKED
        self._unplanned.add(job.model)

    def stop(self, worker: WorkerSlots, job: Job) -> Action:
        """Tell the worker that a request is to wait."""
        command = worker_pb2.WorkerCommand(deschedule=deschedule_of(job, worker))
        return self.command(worker.worker_id, command)

    def put_back(self, job: Job, now: float) -> list[Action]:
        """Put a job into the queue again; no worker has it, so its epoch stands."""
        self.release(job)
        if job.is_cancelled:
            return self.finish(job, outcomes.cancelled(job, now))
        return self.enqueue(job, now)

    def requeue(
        self,
        job: Job,
        reason: RequeueReason,
        now: float,
        *,
        must_drop: bool = False,
        blame: Blame = Blame.NONE,
        worker: WorkerSlots | None = None,
    ) -> list[Action]:
        """A worker does not have it any more, or must not have it: to the queue, in its next epoch.

        Args:
            must_drop: the worker may still have it, and is told to drop it.
            blame: whether it may have caused the loss.
            worker: that had it, if it is not in the table any more.
        """
        self.handle(job)
        if job.state is JobState.READING:  # it never got there
            return self.put_back(job, now)
        follows = job.move is not None and job.move.is_following
        out: list[Action] = [actions.CountRetry(job.key, reason.value, job.handle)]
        if follows and job.move is not None:
            out = [actions.Follows(job.key, job.handle, job.move)]
        worker = worker or self.worker_of(job)
        is_searched = worker is not None and reason.leaves_state and not follows
        left_in = worker.exchange if worker is not None and is_searched else ""
        job.retries = job.retries.after_loss(job.worker_id, reason, left_in)
        if must_drop and job.worker_id is not None:
            leaves_state = follows or (bool(left_in) and self._shares_exchange(job, left_in))
            out.append(self.drop(job.worker_id, job.key, job.epoch, leaves_state=leaves_state))
        self.leave_queue(job)
        self.release(job)
        job.next_epoch()
        job.is_suspect |= blame is not Blame.NONE
        terminal_event = self._terminal_event_after(job, reason, blame, now)
        return out + (self.enqueue(job, now) if terminal_event is None else self.finish(job, terminal_event))

    def clear(self, job: Job) -> None:
        """A suspect has run past the point at which its engine died: it is like others again."""
        is_queued = job.is_queued
        if is_queued:
            self.queue.discard(job)
        job.is_suspect = False
        job.retries = job.retries.cleared()
        if is_queued:
            self.queue.push(job)
            self._unplanned.add(job.model)
        worker = self.worker_of(job)
        if worker is not None:
            worker.admit_others(job.key)
            self.replan(worker)

    def _terminal_event_after(
        self, job: Job, reason: RequeueReason, blame: Blame, now: float
    ) -> TerminalEvent | None:
        """Terminal event of a lost job that is not to be tried again; None if it is."""
        if job.is_cancelled:
            return outcomes.cancelled(job, now)
        if blame is Blame.CONVICTED:
            return outcomes.poison(job)
        if job.retries.counted > self.limits.max_retries:
            return outcomes.retries_exhausted(job, reason.value)
        return None

    def end_killers(self, now: float) -> list[Action]:
        """End the jobs that wait with an image which an engine has crashed over."""
        waiting = [
            (job, self.killer_images.why_not(job, now)) for job in self._jobs.values() if job.is_queued
        ]
        return [
            action for job, why in waiting if why for action in self.finish(job, outcomes.impossible(why))
        ]

    def finish(self, job: Job, terminal_event: TerminalEvent) -> list[Action]:
        """End it here, with a terminal chunk of the scheduler's own; but first find out, where it may run or
        have run, whether it has not ended already."""
        self.handle(job)
        if job.replay.is_inherited and not self._is_settled:
            self._deferred.append((job, terminal_event))
            return self.wait(job)
        self.leave_queue(job)
        self.release(job)
        job.replay = job.replay.finishing_with(terminal_event)
        if job.replay.is_due:
            return [] if job.state is JobState.READING else [self.read(job)]
        chunk = outcomes.terminal_chunk(job, terminal_event)
        return [actions.PublishChunk(job.key, chunk), *self.acknowledge(job, outcome_of(chunk))]

    def acknowledge(self, job: Job, outcome: str) -> list[Action]:
        """Its terminal chunk is out."""
        if job.follows_to(job.worker_id):
            self.end_move(job, DONE)
        self.leave_queue(job)
        self.release(job)
        job.state = JobState.FINISHED
        del self._jobs[job.key]
        self._finished.remember(job.key, job.sequence)
        return [actions.Ack(job.key, job.handle, job.model, outcome)]

    def release(self, job: Job) -> None:
        """Take it off its worker, if one has it."""
        if job.move is not None and not (job.move.is_following and job.worker_id == job.move.from_id):
            self.end_move(job, "over")
        self.fairness.on_stopped(job)
        self.queue.give_place_back(job)
        worker = self.worker_of(job)
        job.worker_id = None
        if worker is not None:
            worker.release(job.key)
            self.replan(worker)

    def end_move(self, job: Job, outcome: str) -> None:
        """A job does not move any more, if it did; where it is queued, it is placed as any other."""
        worker = self.moves.end(job, outcome)
        if worker is not None:
            self.replan(worker)
        if job.is_queued:
            self._unplanned.add(job.model)

    def adopt(self, job: Job, worker: WorkerSlots, unowned: UnownedRequest, now: float) -> list[Action]:
        """A worker has it already: take note where."""
        self.handle(job)
        self.leave_queue(job)
        self.release(job)
        self.take_urgency(job)
        worker.adopt(unowned, cells_wanted_on(job, worker))
        job.replay = job.replay.adopted()
        job.epoch = unowned.epoch
        job.worker_id = worker.worker_id
        job.stay.adopt(now)
        if unowned.residence is Residence.RUNNING:
            self.queue.take_place(job)
            self.on_running(job, now)
            return []
        if job.is_suspect:
            return self.requeue(job, RequeueReason.MOVED, now, must_drop=True)
        self.deschedule(worker, job, now)
        return []

    def take_urgency(self, job: Job) -> None:
        """Give it the urgency key that it has from now on, while it is on a worker."""
        job.urgency_key = self.queue.urgency_key(job)

    def worker_of(self, job: Job) -> WorkerSlots | None:
        return self.table.get(job.worker_id) if job.worker_id is not None else None

    def replan(self, worker: WorkerSlots) -> None:
        """Something may have changed for what waits for this worker."""
        for model in worker.context_lengths:
            queue = self.queue.models.get(model)
            is_wanted = bool(queue) or self.placement.has_waiting(model)
            if (worker.has_slot_for(Start.RESUME) and is_wanted) or (queue and queue.has_suspects):
                self._unplanned.add(model)

    def _shares_exchange(self, job: Job, exchange: str) -> bool:
        """True if another worker of the job's model would find what its worker leaves."""
        others = (w for w in self.placement.live(job.model) if w.worker_id != job.worker_id)
        return any(worker.exchange == exchange for worker in others)

    def drop(self, worker_id: str, key: RequestKey, epoch: int, *, leaves_state: bool = False) -> Action:
        """The command that rids a worker of a request.

        Args:
            leaves_state: for another worker of its exchange.
        """
        command = worker_pb2.WorkerCommand()
        command.drop.leaves_state = leaves_state
        command.drop.request_id = key.request_id
        command.drop.tenant = key.tenant
        command.drop.epoch = epoch
        return self.command(worker_id, command)

    def command(self, worker_id: str, command: worker_pb2.WorkerCommand) -> Action:
        command.term = self.term
        return actions.SendCommand(worker_id, command)
