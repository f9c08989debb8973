"""The scheduler's decisions (pure): messages and the time in, actions out.

Every `on_...` method takes one thing that happened and returns what to do about it; `plan` then gives
waiting jobs their places. Nothing here waits, sends or looks at a clock, so the same object runs behind NATS
and in a simulation.

Each job ends exactly once: by the worker, which publishes the terminal chunk and says so, or here, by
`_conclude`. Both come together in `_end`, which acknowledges the job.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from functools import partial

from inferflux.v1 import generation_pb2, scheduler_pb2, worker_pb2

from . import actions, batches, outcomes
from .actions import Action
from .emitted import Emitted, outcome_of
from .jobs import Conclusion, Job, JobState, Loss, Place, RequestKey
from .limits import Limits
from .placement import Placement, cells_needed
from .policies import PolicyName, make_policy
from .queue import Queue
from .slots import SlotTable, Stray, WorkerSlots
from .timers import Timers

_STALL_S = 1.0
_LOOK_AGAIN_S = 0.5
_GONE_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Flight:
    """A batch on its way, and the epoch of each job in it."""

    worker_id: str
    jobs: tuple[tuple[Job, int], ...]


class Core:
    """The queue, the slot table and every job in between.

    Args:
        now: when it starts, in seconds since the Unix epoch, by the clock that every later `now` is of.
        name: distinguishes this scheduler's batches from those of others.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        now: float,
        name: str = "s",
        policy: PolicyName = "priority",
        aging_s: float = 2.0,
    ) -> None:
        self.limits = limits
        self.queue = Queue(partial(make_policy, policy, aging_s=aging_s))
        self.table = SlotTable()
        self.jobs: dict[RequestKey, Job] = {}
        self.is_settled = False
        self._name = name
        self._started_s = now
        self._ticked_s = now
        self._is_connected = True
        self._placement = Placement()
        self._arrivals = 0
        self._batches = 0
        self._flights: dict[str, Flight] = {}
        # Models to plan for, and jobs that have not been through a plan since they were queued.
        self._unplanned: set[str] = set()
        self._fresh: list[Job] = []
        # Ends of inherited jobs, put off until it is known whether a worker has them.
        self._deferred: list[tuple[Job, Conclusion]] = []
        self._deadlines: Timers[Job] = Timers()
        self._holds: Timers[Job] = Timers()
        self._unserved_since: dict[str, float] = {}
        self._look_again_s: dict[str, float] = {}
        self._early_cancels: OrderedDict[RequestKey, float] = OrderedDict()
        self._ended: OrderedDict[RequestKey, int] = OrderedDict()
        self._gone: OrderedDict[tuple[str, str], None] = OrderedDict()
        # Where requests run whose jobs have not come.
        self._orphans: dict[RequestKey, str] = {}

    # What happens to jobs

    def on_job(
        self, request: scheduler_pb2.InferenceRequest, handle: object, sequence: int, now: float
    ) -> list[Action]:
        """A job from the work queue. `sequence` is its place there: a job that comes again keeps it."""
        key = RequestKey(request.tenant, request.request_id)
        held = self.jobs.get(key)
        if held is not None and held.sequence == sequence:
            held.handle = handle
            return []
        if held is not None or self._ended.get(key) == sequence:
            return [actions.Ack(handle, request.model, "duplicate")]
        job = self._make_job(key, request, handle, sequence, now)
        self.jobs[key] = job
        spread = (job.arrival % 16 + 1) / 16  # jobs that come together are not held together for ever
        self._holds.add(now + self.limits.hold_interval_s * spread, job)
        if job.deadline_s is not None:
            self._deadlines.add(job.deadline_s, job)
        orphan = self._orphan(key)
        if orphan is not None and orphan[0].can_adopt(orphan[1]):
            self._adopt(job, *orphan, now)
            return []
        if self._early_cancels.pop(key, None) is not None:
            job.is_cancelled = True
            return self._conclude(job, outcomes.cancelled(job, now))
        return self._enqueue(job, now)

    def on_cancel(self, key: RequestKey, now: float) -> tuple[bool, list[Action]]:
        """A cancel notice, which workers hear as well. Returns whether the request is known, too."""
        job = self.jobs.get(key)
        if job is None:
            if key not in self._ended:  # it may have overtaken its job
                self._early_cancels[key] = now
            return False, []
        job.is_cancelled = True
        if job.state in (JobState.QUEUED, JobState.READING):
            return True, self._conclude(job, outcomes.cancelled(job, now))
        return True, []

    def on_replay(self, key: RequestKey, read_id: int, emitted: Emitted, now: float) -> list[Action]:
        """The answer to ReadReplay."""
        job = self.jobs.get(key)
        if job is None or job.state is not JobState.READING or job.read_id != read_id:
            return []
        if emitted.outcome:
            return self._end(job, emitted.outcome)
        job.continue_from(emitted.token_ids, emitted.epoch, now)
        if job.conclusion is not None:
            return self._conclude(job, job.conclusion)
        if job.is_expired(now):
            return self._conclude(job, outcomes.expired())
        if job.max_tokens and job.generated_tokens >= job.max_tokens:
            return self._conclude(job, outcomes.finished(job, generation_pb2.FINISH_REASON_LENGTH, now))
        worker = self._worker_of(job)
        if worker is None or worker.is_held or worker.state != scheduler_pb2.WORKER_STATE_READY:
            out = self._put_back(job, now)
            job.needs_replay = job.is_queued  # by then there may be more to read
            return out
        worker.owners[key].epoch = job.epoch
        return self._dispatch(worker, [job], now)

    # What workers say

    def on_heartbeat(self, status: scheduler_pb2.WorkerStatus, now: float) -> list[Action]:
        if (status.worker_id, status.incarnation) in self._gone:
            return []
        out: list[Action] = []
        worker = self.table.get(status.worker_id)
        if worker is not None and worker.incarnation != status.incarnation:
            out += self._forget(worker, Loss.WORKER_RESTARTED, now, is_final=True)
            worker = None
        if worker is None:
            worker = self.table.workers[status.worker_id] = WorkerSlots(status, now)
        found = worker.reconcile(status, now, self.limits.vanished_heartbeats)
        for key, epoch in found.ended:
            out += self._on_ended(worker.worker_id, key, epoch, "ended")
        for owner in found.confirmed:
            out += self._accept(self.jobs[owner.key])
        for owner in found.vanished:
            out += self._lose(self.jobs[owner.key], Loss.VANISHED, now, must_drop=True)
        for stray in found.strays:
            out += self._on_stray(worker, stray, now)
        for key in worker.owners:
            job = self.jobs[key]
            if job.is_cancelled and job.state is JobState.RUNNING:
                out.append(actions.TellCancel(key))
        self._placement.update_models(worker)
        self._replan(worker)
        return out

    def on_event(self, event: scheduler_pb2.WorkerEvent, now: float) -> list[Action]:
        worker = self.table.get(event.worker_id, event.incarnation)
        match event.WhichOneof("event"):
            case "request_ended":
                ended = event.request_ended
                key = RequestKey(ended.tenant, ended.request_id)
                if worker is not None:
                    key = worker.resolve(*key)
                return self._on_ended(event.worker_id, key, ended.epoch, ended.outcome)
            case "engine_died" if worker is not None:
                return self._on_engine_died(worker, event.engine_died, now)
            case "worker_left":
                self._remember_gone(event.worker_id, event.incarnation)
                if worker is not None:
                    return self._forget(worker, Loss.WORKER_LEFT, now, is_final=True)
        return []

    def on_batch_answer(self, answer: worker_pb2.BatchAccepted, now: float) -> list[Action]:
        """A worker's answer to a Dispatch."""
        flight = self._flights.pop(answer.batch_id, None)
        if flight is None:
            return []
        accepted = set(answer.accepted_request_ids)
        refused = {refusal.request_id: refusal for refusal in answer.refused}
        out: list[Action] = []
        for job, epoch in flight.jobs:
            request_id = job.key.request_id
            if not job.is_at(flight.worker_id, epoch):
                if request_id in accepted and job.state is not JobState.ENDED:
                    out.append(_drop(flight.worker_id, job.key, epoch))
            elif job.state is not JobState.DISPATCHING:
                continue
            elif request_id in accepted:
                out += self._accept(job)
            elif request_id in refused:
                out += self._on_refused(job, flight.worker_id, refused[request_id], now)
            else:
                out += self._lose(job, Loss.NO_ANSWER, now, must_drop=True)
        return out

    def on_batch_unanswered(self, batch_id: str, *, is_delivered: bool, now: float) -> list[Action]:
        """A Dispatch went without an answer.

        Args:
            is_delivered: it may have been: the worker may run it. False when it certainly was not.
        """
        flight = self._flights.pop(batch_id, None)
        if flight is None:
            return []
        self._hold_worker(flight.worker_id)
        out: list[Action] = []
        for job, epoch in flight.jobs:
            if job.state is not JobState.DISPATCHING or not job.is_at(flight.worker_id, epoch):
                continue
            if is_delivered:
                out += self._lose(job, Loss.NO_ANSWER, now, must_drop=True)
            else:
                out += self._put_back(job, now)
        return out

    # What time brings

    def on_tick(self, now: float) -> list[Action]:
        """To be called several times a second."""
        if now - self._ticked_s > _STALL_S:  # this process stood still, and heard nobody
            self.table.excuse(now)
        self._ticked_s = now
        out: list[Action] = []
        if not self.is_settled and now - self._started_s >= self.limits.settle_s:
            out += self._settle()
        for job in self._deadlines.due(now):
            if job.state in (JobState.QUEUED, JobState.READING) and job.conclusion is None:
                out += self._conclude(job, outcomes.expired())
        for job in self._holds.due(now):
            if job.state is not JobState.ENDED:
                out.append(actions.Hold(job.handle))
                self._holds.add(now + self.limits.hold_interval_s, job)
        if self._is_connected:
            for worker in self.table.silent(now, self.limits.worker_dead_s):
                out += self._forget(worker, Loss.WORKER_DEAD, now)
            if self.is_settled:
                out += self._fail_unserved(now)
        while self._early_cancels:
            key, heard_s = next(iter(self._early_cancels.items()))
            if now - heard_s < self.limits.early_cancel_s:
                break
            del self._early_cancels[key]
        return out

    def on_connection(self, is_connected: bool, now: float) -> None:
        """The bus went away or is back. Workers are not blamed for what could not be heard meanwhile."""
        self._is_connected = is_connected
        if is_connected:
            self.table.excuse(now + self.limits.reconnect_grace_s)
            self._unplanned.update(self.queue.models)

    # Giving jobs their places

    @property
    def must_plan(self) -> bool:
        """Whether `plan` could do anything now."""
        return self.is_settled and self._is_connected and bool(self._unplanned or self._fresh)

    def plan(self, now: float) -> list[Action]:
        """Place waiting jobs, in order, for as long as there are places; tell new ones that wait so."""
        if not self.must_plan:
            return []
        out: list[Action] = []
        for model in self._unplanned:
            out += self._plan_model(model, now)
        self._unplanned.clear()
        fresh, self._fresh = self._fresh, []
        for job in fresh:
            if job.state is JobState.QUEUED and job.announced_epoch != job.epoch:
                out.append(self._announce(job))
        return out

    def _plan_model(self, model: str, now: float) -> list[Action]:
        """In strict order: a job that fits nowhere now is waited for, or small ones would starve it."""
        queue = self.queue.models.get(model)
        if queue is None:
            return []
        out: list[Action] = []
        placed: dict[str, list[Job]] = defaultdict(list)
        while (job := queue.first()) is not None:
            worker = self._placement.choose(job)
            if worker is None:
                why = self._placement.why_never(job)
                if not why:
                    break
                out += self._conclude(job, outcomes.too_large(why))
                continue
            queue.depart(job, now)
            self._assign(job, worker)
            if job.needs_replay:
                out.append(self._read(job))
            else:
                placed[worker.worker_id].append(job)
        for worker_id, jobs in placed.items():
            out += self._dispatch(self.table.workers[worker_id], jobs, now)
        return out

    def _assign(self, job: Job, worker: WorkerSlots) -> None:
        cells = cells_needed(job, worker.context_lengths[job.model])
        owner = worker.assign(job.key, 0 if job.needs_replay else job.epoch, cells)
        job.place = Place(worker.worker_id, owner.slot)
        self._placement.update(worker)

    def _dispatch(self, worker: WorkerSlots, jobs: list[Job], now: float) -> list[Action]:
        out: list[Action] = []
        limits = self.limits
        for batch in batches.split(jobs, max_size=limits.max_batch_size, max_tokens=limits.max_batch_tokens):
            self._batches += 1
            batch_id = f"{self._name}-{self._batches}"
            waits_s = tuple(now - job.enqueued_s for job in batch if not job.has_run)
            self._flights[batch_id] = Flight(worker.worker_id, tuple((job, job.epoch) for job in batch))
            for job in batch:
                job.state = JobState.DISPATCHING
                job.dispatched_s = now
            out.append(
                actions.Dispatch(
                    worker_id=worker.worker_id,
                    batch=batches.build(batch_id, worker.incarnation, batch),
                    model=batch[0].model,
                    waits_s=waits_s,
                    handles=tuple(job.handle for job in batch),
                )
            )
        return out

    def _announce(self, job: Job) -> Action:
        job.announced_epoch = job.epoch
        queue = self.queue.models[job.model]
        chunk = outcomes.queued_chunk(job, queue.position(job), queue.expected_wait_s(job))
        return actions.PublishChunk(job.key, chunk)

    # From one state to the next

    def _settle(self) -> list[Action]:
        """Whoever lives has been heard: dispatching starts."""
        self.is_settled = True
        self._unplanned.update(self.queue.models)
        out: list[Action] = []
        for job, conclusion in self._deferred:
            if job.is_inherited and job.state is JobState.QUEUED:
                out += self._conclude(job, conclusion)
        self._deferred.clear()
        return out

    def _make_job(
        self,
        key: RequestKey,
        request: scheduler_pb2.InferenceRequest,
        handle: object,
        sequence: int,
        now: float,
    ) -> Job:
        self._arrivals += 1
        enqueued_s = min(request.enqueued_unix_ms / 1000 or now, now)
        is_inherited = enqueued_s < self._started_s + self.limits.clock_skew_s
        return Job(
            key=key,
            request=request,
            handle=handle,
            sequence=sequence,
            arrival=self._arrivals,
            enqueued_s=enqueued_s,
            deadline_s=request.deadline_unix_ms / 1000 or None,
            queued_s=now,
            epoch=max(1, request.epoch),
            is_inherited=is_inherited,
            needs_replay=is_inherited,
        )

    def _enqueue(self, job: Job, now: float) -> list[Action]:
        job.queued_s = now
        if job.is_expired(now):
            return self._conclude(job, outcomes.expired())
        if why := self._placement.why_never(job):
            return self._conclude(job, outcomes.too_large(why))
        return self._wait(job)

    def _wait(self, job: Job) -> list[Action]:
        if job.state is not JobState.QUEUED:
            job.state = JobState.QUEUED
            self.queue.push(job)
            self._unplanned.add(job.model)
            self._fresh.append(job)
        return []

    def _read(self, job: Job) -> Action:
        job.state = JobState.READING
        job.read_id += 1
        return actions.ReadReplay(job.key, job.read_id)

    def _accept(self, job: Job) -> list[Action]:
        """The worker has it."""
        worker = self._worker_of(job)
        if worker is None or job.state is not JobState.DISPATCHING:
            return []
        worker.owners[job.key].is_accepted = True
        job.state = JobState.RUNNING
        return [actions.TellCancel(job.key)] if job.is_cancelled else []

    def _on_refused(self, job: Job, worker_id: str, refusal: worker_pb2.Refusal, now: float) -> list[Action]:
        reason = worker_pb2.RefusalReason.Name(refusal.reason).removeprefix("REFUSAL_REASON_").lower()
        out: list[Action] = [actions.CountRefusal(worker_id, reason)]
        match refusal.reason:
            case worker_pb2.REFUSAL_REASON_CANCELLED:
                return out + self._conclude(job, outcomes.cancelled(job, now))
            case worker_pb2.REFUSAL_REASON_INVALID:
                return out + self._conclude(job, outcomes.invalid(refusal.message))
        self._hold_worker(worker_id)
        job.refusals += 1
        if job.refusals > self.limits.max_refusals:
            return out + self._conclude(job, outcomes.refusals_exhausted(refusal.message))
        return out + self._put_back(job, now)

    def _put_back(self, job: Job, now: float) -> list[Action]:
        """To the queue again; no worker has it, so its epoch stands."""
        self._release(job)
        if job.is_cancelled:
            return self._conclude(job, outcomes.cancelled(job, now))
        return self._enqueue(job, now)

    def _lose(self, job: Job, cause: Loss, now: float, *, must_drop: bool = False) -> list[Action]:
        """A worker does not have it any more, or must not have it: to the queue, in its next epoch."""
        if job.state is JobState.READING:  # it never got there
            return self._put_back(job, now)
        out: list[Action] = [actions.CountRetry(job.key, cause.value)]
        if must_drop and job.place is not None:
            out.append(_drop(job.place.worker_id, job.key, job.epoch))
        self._release(job)
        job.next_epoch()
        job.retries += cause.counts
        conclusion = self._conclusion_after(job, cause, now)
        return out + (self._enqueue(job, now) if conclusion is None else self._conclude(job, conclusion))

    def _conclusion_after(self, job: Job, cause: Loss, now: float) -> Conclusion | None:
        """Why a lost job is not to be tried again."""
        if job.is_cancelled:
            return outcomes.cancelled(job, now)
        if job.engine_deaths >= self.limits.poison_deaths:
            return outcomes.poison(job)
        if job.retries > self.limits.max_retries:
            return outcomes.retries_exhausted(job, cause.value)
        return None

    def _conclude(self, job: Job, conclusion: Conclusion) -> list[Action]:
        """End it here, with a terminal chunk of the scheduler's own; but first find out, where it may run or
        have run, whether it has not ended already."""
        if job.is_inherited and not self.is_settled:
            self._deferred.append((job, conclusion))
            return self._wait(job)
        if job.state is JobState.QUEUED:
            self.queue.discard(job)
        self._release(job)
        job.conclusion = conclusion
        if job.needs_replay:
            return [] if job.state is JobState.READING else [self._read(job)]
        chunk = outcomes.terminal_chunk(job, conclusion)
        return [actions.PublishChunk(job.key, chunk), *self._end(job, outcome_of(chunk))]

    def _end(self, job: Job, outcome: str) -> list[Action]:
        """Its terminal chunk is out."""
        self._release(job)
        job.state = JobState.ENDED
        del self.jobs[job.key]
        self._ended.pop(job.key, None)
        self._ended[job.key] = job.sequence
        if len(self._ended) > self.limits.remembered_jobs:
            self._ended.popitem(last=False)
        return [actions.Ack(job.handle, job.model, outcome)]

    def _release(self, job: Job) -> None:
        """Take its slot back, if it has one."""
        worker = self._worker_of(job)
        job.place = None
        if worker is not None:
            worker.release(job.key)
            self._placement.update(worker)
            self._replan(worker)

    # What heartbeats and events lead to

    def _on_ended(self, worker_id: str, key: RequestKey, epoch: int, outcome: str) -> list[Action]:
        job = self.jobs.get(key)
        if job is None:
            return []
        if not job.is_at(worker_id, epoch) or job.state is JobState.READING:
            return []
        if job.is_adopted:  # readers may have seen a later epoch than this one: look whether it was their end
            self._release(job)
            job.next_epoch()
            return [self._read(job)]
        return self._end(job, outcome)

    def _on_engine_died(
        self, worker: WorkerSlots, died: scheduler_pb2.EngineDied, now: float
    ) -> list[Action]:
        worker.state = scheduler_pb2.WORKER_STATE_LOADING
        out: list[Action] = []
        for on_board in died.on_board:
            job = self.jobs.get(worker.resolve(on_board.tenant, on_board.request_id))
            if job is None or not job.is_at(worker.worker_id, on_board.epoch):
                continue
            job.engine_deaths += job.state is not JobState.READING
            out += self._lose(job, Loss.ENGINE_DIED, now)
        self._placement.update_models(worker)
        return out

    def _on_stray(self, worker: WorkerSlots, stray: Stray, now: float) -> list[Action]:
        job = self.jobs.get(stray.key)
        if job is None:
            has_waited = self.is_settled and now - stray.since_s >= self.limits.orphan_grace_s
            if has_waited or stray.key in self._ended:
                return [_drop(worker.worker_id, stray.key, stray.epoch)]
            self._orphans[stray.key] = worker.worker_id
            return []
        is_waiting = job.state in (JobState.QUEUED, JobState.READING)
        if (is_waiting and (job.is_inherited or stray.epoch == job.epoch)) or stray.epoch > job.epoch:
            if worker.can_adopt(stray):
                self._adopt(job, worker, stray, now)
            return []
        return [_drop(worker.worker_id, stray.key, stray.epoch)]

    def _orphan(self, key: RequestKey) -> tuple[WorkerSlots, Stray] | None:
        worker = self.table.get(self._orphans.pop(key, ""))
        stray = worker.strays.get(key) if worker is not None else None
        return (worker, stray) if worker is not None and stray is not None else None

    def _adopt(self, job: Job, worker: WorkerSlots, stray: Stray, now: float) -> None:
        """It runs already: take note where."""
        if job.state is JobState.QUEUED:
            self.queue.discard(job)
        self._release(job)
        cells = cells_needed(job, worker.context_lengths.get(job.model, 0))
        owner = worker.adopt(stray, cells)
        job.read_id += 1
        job.conclusion = None
        job.is_inherited = False
        job.is_adopted = True
        job.epoch = stray.epoch
        job.place = Place(worker.worker_id, owner.slot)
        job.dispatched_s = job.dispatched_s or now
        job.state = JobState.RUNNING
        self._placement.update(worker)

    def _forget(
        self, worker: WorkerSlots, cause: Loss, now: float, *, is_final: bool = False
    ) -> list[Action]:
        """A worker is gone, and what it had is lost. One that was only silent may come back."""
        del self.table.workers[worker.worker_id]
        self._placement.remove(worker)
        if is_final:
            self._remember_gone(worker.worker_id, worker.incarnation)
        out: list[Action] = []
        for key in list(worker.owners):
            out += self._lose(self.jobs[key], cause, now)
        return out

    def _remember_gone(self, worker_id: str, incarnation: str) -> None:
        self._gone[worker_id, incarnation] = None
        if len(self._gone) > _GONE_REMEMBERED:
            self._gone.popitem(last=False)

    def _fail_unserved(self, now: float) -> list[Action]:
        """End what has waited too long for a worker that has its model."""
        out: list[Action] = []
        timeout_s = self.limits.no_worker_timeout_s
        for model, queue in self.queue.models.items():
            if not queue or self._placement.is_served(model):
                self._unserved_since.pop(model, None)
                self._look_again_s.pop(model, None)
                continue
            since_s = self._unserved_since.setdefault(model, now)
            if now - since_s < timeout_s or now < self._look_again_s.get(model, 0):
                continue
            self._look_again_s[model] = now + _LOOK_AGAIN_S
            for job in [j for j in queue if now - j.queued_s >= timeout_s]:
                out += self._conclude(job, outcomes.no_worker(job, timeout_s))
        self.queue.forget_empty(self._placement.is_served)
        return out

    def _worker_of(self, job: Job) -> WorkerSlots | None:
        return self.table.get(job.place.worker_id) if job.place is not None else None

    def _hold_worker(self, worker_id: str) -> None:
        if (worker := self.table.get(worker_id)) is not None:
            worker.is_held = True
            self._placement.update(worker)

    def _replan(self, worker: WorkerSlots) -> None:
        if worker.is_open:
            self._unplanned.update(m for m in worker.context_lengths if self.queue.models.get(m))


def _drop(worker_id: str, key: RequestKey, epoch: int) -> Action:
    command = worker_pb2.WorkerCommand()
    command.drop.request_id = key.request_id
    command.drop.tenant = key.tenant
    command.drop.epoch = epoch
    return actions.SendCommand(worker_id, command)
