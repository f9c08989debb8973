"""The scheduler's decisions (pure): messages and the time in, actions out.

Every `on_...` method takes one thing that happened and returns what to do about it; `plan` then gives
waiting jobs their places. Nothing here waits, sends or looks at a clock, so the same object runs behind NATS
and in a simulation.

Each job ends exactly once: by the worker, which publishes the terminal chunk and says so, or here, by
`_conclude`. Both come together in `_end`, which acknowledges the job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from inferflux.common.errors import NotFound
from inferflux.v1 import generation_pb2, scheduler_pb2, worker_pb2

from . import actions, batches, bounds, outcomes
from .actions import Action
from .announcements import Announcements, Outlook
from .bounds import Bounds
from .drains import DrainProgress, Drains, progress_of
from .emitted import Emitted, outcome_of
from .fairness import FairnessController, FairnessSettings
from .jobs import Conclusion, Job, JobState, Loss, RequestKey
from .limits import Limits
from .memory import Recent
from .placement import Placement, cells_wanted
from .policies import PolicyName, make_policy
from .queue import ModelQueue, Queue
from .rates import ModelRates
from .shares import TenantShares
from .slots import Owner, Residence, SlotTable, Stray, WorkerSlots
from .timers import Timers

_STALL_S = 1.0
_LOOK_AGAIN_S = 0.5
_GONE_REMEMBERED = 4096
_CANCELS_REMEMBERED = 65_536
# Parked requests passed over in one plan, whose workers have no turn for them, to find one behind them that
# has a place.
_PASS_OVER_AT_MOST = 256


@dataclass(frozen=True, slots=True)
class Flight:
    """A batch on its way, and the epoch of each job in it."""

    worker_id: str
    jobs: tuple[tuple[Job, int], ...]


@dataclass(slots=True)
class Placed:
    """What a plan has for one worker."""

    new: list[Job] = field(default_factory=list)
    resumed: list[Job] = field(default_factory=list)
    victims: list[Job] = field(default_factory=list)


class Core:
    """The queue, the slot table and every job in between.

    Args:
        now: when it starts, in seconds since the Unix epoch, by the clock that every later `now` is of.
        name: distinguishes this scheduler's batches from those of others.
        term: of the lease under which it leads; workers refuse lower ones than they have seen.
        aging_s: seconds of waiting that are worth one level of priority.
        tenant_weights: shares under the policy `fair`; 1 for who is not in it.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        now: float,
        name: str = "s",
        policy: PolicyName = "priority",
        aging_s: float = 2.0,
        tenant_weights: Mapping[str, float] | None = None,
        fairness: FairnessSettings | None = None,
        term: int = 0,
    ) -> None:
        self.limits = limits
        self.policy = policy
        self.term = term
        weights = dict(tenant_weights or {})
        self.queue = Queue(lambda: make_policy(policy, aging_s=aging_s, shares=TenantShares(weights)))
        self.table = SlotTable()
        self.jobs: dict[RequestKey, Job] = {}
        self.is_settled = False
        self._name = name
        self._started_s = now
        self._ticked_s = now
        self._is_connected = True
        self._placement = Placement()
        self._fairness = FairnessController(fairness or FairnessSettings(), aging_s=aging_s)
        self._drains = Drains()
        self._bounds = Bounds(limits.max_queued, limits.max_queued_per_tenant)
        self._rates = ModelRates()
        self._announcements = Announcements()
        self._expected: set[str] | None = None
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
        # When they were heard, by request; the place in the work queue of those that ended; who left.
        self._early_cancels: Recent[RequestKey, float] = Recent(_CANCELS_REMEMBERED)
        self._ended: Recent[RequestKey, int] = Recent(limits.remembered_jobs)
        self._gone: Recent[tuple[str, str], None] = Recent(_GONE_REMEMBERED)
        # Where requests run whose jobs have not come.
        self._orphans: dict[RequestKey, str] = {}

    # What is asked of it

    @property
    def fairness(self) -> FairnessSettings:
        return self._fairness.settings

    def set_fairness(self, settings: FairnessSettings) -> None:
        """Go by these from the next turn on."""
        self._fairness.settings = settings
        self._unplanned.update(self.queue.models)

    def expect(self, worker_ids: Collection[str]) -> None:
        """Dispatching may start as soon as all of these have been heard; without this, after `settle_s`."""
        self._expected = set(worker_ids) - self.table.workers.keys() if worker_ids else None

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
        if undo:
            self._drains.end(worker_id)
            return [self._command(worker_id, worker_pb2.WorkerCommand(undrain=worker_pb2.UndrainWorker()))]
        self._drains.begin(worker_id, None if hand_over_after_s is None else now + hand_over_after_s)
        worker.state = scheduler_pb2.WORKER_STATE_DRAINING
        self._placement.update(worker)
        return [self._command(worker_id, worker_pb2.WorkerCommand(drain=worker_pb2.DrainWorker()))]

    def drain_progress(self, worker_id: str) -> DrainProgress:
        """Raises NotFound when no such worker is alive."""
        return progress_of(self._worker_named(worker_id))

    def _worker_named(self, worker_id: str) -> WorkerSlots:
        worker = self.table.get(worker_id)
        if worker is None:
            raise NotFound(f"worker_id: no worker {worker_id} is alive", reason="UNKNOWN_WORKER")
        return worker

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
        if self._early_cancels.pop(key) is not None:
            job.is_cancelled = True
            return self._conclude(job, outcomes.cancelled(job, now))
        return self._enqueue(job, now) if job.is_inherited else self._admit(job, now)

    def on_cancel(self, key: RequestKey, now: float) -> tuple[bool, list[Action]]:
        """A cancel notice, which workers hear as well. Returns whether the request is known, too."""
        job = self.jobs.get(key)
        if job is None:
            if key not in self._ended:  # it may have overtaken its job
                self._early_cancels.remember(key, now)
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
            if status.started_unix_ms < worker.status.started_unix_ms:
                return []
            out += self._forget(worker, Loss.WORKER_RESTARTED, now, is_final=True)
            worker = None
        if worker is None:
            worker = self.table.workers[status.worker_id] = WorkerSlots(status, now)
        found = worker.reconcile(status, now, self.limits.insist_heartbeats)
        for key, epoch in found.ended:
            out += self._on_ended(worker.worker_id, key, epoch, "ended")
        for owner in found.confirmed:
            out += self._accept(self.jobs[owner.key], now)
        for owner in found.vanished:
            out += self._lose(self.jobs[owner.key], Loss.VANISHED, now, must_drop=True)
        for owner in found.going_on:
            self._take_back(worker, self.jobs[owner.key], now)
        for owner, residence in found.stopped:
            if self.jobs[owner.key].state is JobState.RUNNING:
                out += self._yield(worker, self.jobs[owner.key], residence, "unheard", now)
        out += self._follow(worker, status.running, now)
        for stray in found.strays:
            out += self._on_stray(worker, stray, now)
        for key in worker.owners:
            job = self.jobs[key]
            if job.is_cancelled and job.state in (JobState.RUNNING, JobState.PARKED):
                out.append(actions.TellCancel(key))
        if worker.worker_id in self._drains and worker.state == scheduler_pb2.WORKER_STATE_READY:
            worker.state = scheduler_pb2.WORKER_STATE_DRAINING
            drain = worker_pb2.WorkerCommand(drain=worker_pb2.DrainWorker())
            out.append(self._command(worker.worker_id, drain))
        self._placement.update_models(worker)
        self._rates.update(status)
        self._replan(worker)
        if self._expected is not None:
            self._expected.discard(worker.worker_id)
        return out

    def _follow(
        self, worker: WorkerSlots, reports: Iterable[scheduler_pb2.RunningRequest], now: float
    ) -> list[Action]:
        """See how far requests got; give up what gets no further."""
        out: list[Action] = []
        stuck: list[Job] = []
        for report in reports:
            job = self.jobs.get(RequestKey(report.tenant, report.request_id))
            if job is None or not job.is_at(worker.worker_id, report.epoch):
                continue
            if (report.generated_tokens, report.computed_tokens) != (job.seen_tokens, job.seen_computed):
                job.progressed_s = now
                job.seen_computed = report.computed_tokens
                out += self._on_progress(worker, job, report.generated_tokens)
            elif (
                self.limits.stuck_s
                and job.state is JobState.RUNNING
                and now - job.progressed_s > self.limits.stuck_s
            ):
                stuck.append(job)
        for job in stuck:
            out += self._lose(job, Loss.STUCK, now, must_drop=True)
        return out

    def _on_progress(self, worker: WorkerSlots, job: Job, generated: int) -> list[Action]:
        job.seen_tokens = max(job.seen_tokens, generated)
        worker.grow(worker.owners[job.key], cells_wanted(job))
        return self._charge(job)

    def _charge(self, job: Job) -> list[Action]:
        """Set the tokens generated since the last time to its tenant's account."""
        tokens = job.known_tokens - job.charged_tokens
        if tokens <= 0:
            return []
        job.charged_tokens = job.known_tokens
        if (queue := self.queue.models.get(job.model)) is not None:
            queue.charge(job.key.tenant, 0, tokens)
        return [actions.CountTokens(job.priority, tokens)]

    def on_event(self, event: scheduler_pb2.WorkerEvent, now: float) -> list[Action]:
        worker = self.table.get(event.worker_id, event.incarnation)
        match event.WhichOneof("event"):
            case "request_ended":
                ended = event.request_ended
                key = RequestKey(ended.tenant, ended.request_id)
                return self._on_request_ended(worker, event.worker_id, key, ended)
            case "request_yielded" if worker is not None:
                return self._on_yielded(worker, event.request_yielded, now)
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
                    out.append(self._drop(flight.worker_id, job.key, epoch))
            elif job.state is not JobState.DISPATCHING:
                continue
            elif request_id in accepted:
                out += self._accept(job, now)
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
            if job.is_resuming:
                self._wait_there(job)
            elif is_delivered:
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
        waited_s = now - self._started_s
        if not self.is_settled and (waited_s >= self.limits.settle_s or self._expected == set()):
            out += self._settle()
        for job in self._deadlines.due(now):
            if job.state in (JobState.QUEUED, JobState.READING) and job.conclusion is None:
                out += self._conclude(job, outcomes.expired())
        for job, outlook in self._announcements.due(now, self._outlook):
            out.append(self._publish_queued(job, outlook))
        for job in self._holds.due(now):
            if job.state is not JobState.ENDED:
                out.append(actions.Hold(job.handle))
                self._holds.add(now + self.limits.hold_interval_s, job)
        for worker_id in list(self._drains.due(now)):
            out += self._hand_over(worker_id, now)
        if self._is_connected:
            for worker in self.table.silent(now, self.limits.worker_dead_s):
                out += self._forget(worker, Loss.WORKER_DEAD, now)
            if self.is_settled:
                out += self._fail_unserved(now)
        while (early := self._early_cancels.oldest()) and now - early[1] >= self.limits.early_cancel_s:
            self._early_cancels.pop(early[0])
        return out

    def _hand_over(self, worker_id: str, now: float) -> list[Action]:
        """What a draining worker still has goes to others."""
        out: list[Action] = []
        worker = self.table.get(worker_id)
        for key in list(worker.owners) if worker is not None else ():
            job = self.jobs[key]
            if job.state in (JobState.RUNNING, JobState.PARKED) and not job.is_cancelled:
                out += self._lose(job, Loss.MOVED, now, must_drop=True)
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
        for worker in self.table.workers.values():
            if worker.state == scheduler_pb2.WORKER_STATE_DRAINING:
                out += self._finish_there(worker, now)
        for model in self._unplanned:
            out += self._plan_model(model, now)
        self._unplanned.clear()
        fresh, self._fresh = self._fresh, []
        for job in fresh:
            if job.is_queued and job.announced_epoch != job.epoch:
                out.append(self._announce(job, now))
        return out

    def _plan_model(self, model: str, now: float) -> list[Action]:
        """In strict order: a job that fits nowhere now is waited for, or small ones would starve it. Only
        what waits for its turn on a worker is passed over while that worker has none."""
        queue = self.queue.models.get(model)
        if queue is None:
            return []
        out: list[Action] = []
        placed: dict[str, Placed] = defaultdict(Placed)
        passed_over: list[Job] = []
        while (job := queue.first()) is not None:
            if job.state is JobState.PARKED:
                worker = self._worker_of(job)
                if worker is None or not self._can_go_on(job, worker):
                    if self._should_move(job, now):
                        out += self._lose(job, Loss.MOVED, now, must_drop=True)
                        continue
                    if len(passed_over) >= _PASS_OVER_AT_MOST:
                        break
                    queue.discard(job)
                    passed_over.append(job)
                    continue
                out += self._resume(job, worker, queue, now)
                placed[worker.worker_id].resumed.append(job)
                continue
            worker = self._placement.choose(job)
            if worker is None:
                if why := self._placement.why_never(job):
                    out += self._conclude(job, outcomes.too_large(why))
                    continue
                worker = self._make_room(job, placed, out, now)
                if worker is None:
                    break
            queue.depart(job, now)
            self._assign(job, worker)
            out += self._charge_prompt(job, queue)
            if job.needs_replay:
                out.append(self._read(job))
            else:
                placed[worker.worker_id].new.append(job)
        for job in passed_over:
            queue.push(job)
        for worker_id, placed_there in placed.items():
            out += self._send(self.table.workers[worker_id], placed_there, now)
        return out

    def _finish_there(self, worker: WorkerSlots, now: float) -> list[Action]:
        """What a draining worker has parked gets its turns as soon as there are any: nobody else wants them."""
        out: list[Action] = []
        placed = Placed()
        for owner in sorted(worker.owners.values(), key=lambda owner: owner.rank):
            job = self.jobs[owner.key]
            if job.state is JobState.PARKED and self._can_go_on(job, worker):
                out += self._resume(job, worker, self.queue.models[job.model], now)
                placed.resumed.append(job)
        return out + self._send(worker, placed, now)

    def _can_go_on(self, job: Job, worker: WorkerSlots) -> bool:
        owner = worker.owners[job.key]
        has_cells = cells_wanted(job) <= worker.free_cells or not worker.owned_cells
        return worker.can_resume and owner.is_confirmed and has_cells and not job.is_cancelled

    def _should_move(self, job: Job, now: float) -> bool:
        """Whether another worker should compute it again: it has waited, and there is one that has room."""
        has_waited = now - job.parked_s >= self.limits.move_after_s
        if not has_waited or job.is_cancelled:
            return False
        other = self._placement.choose(job)
        return other is not None and other.worker_id != job.worker_id

    def _resume(self, job: Job, worker: WorkerSlots, queue: ModelQueue, now: float) -> list[Action]:
        queue.depart(job, now)
        residence = worker.owners[job.key].residence
        worker.resume(job.key, cells_wanted(job), self._fairness.rank(job))
        self._placement.update(worker)
        job.is_resuming = True
        name = residence.name.lower()
        return [actions.Resumed(job.key, job.handle, worker.worker_id, now - job.parked_s, name)]

    def _make_room(
        self, job: Job, placed: dict[str, Placed], out: list[Action], now: float
    ) -> WorkerSlots | None:
        """Have less urgent requests give way, if the job is urgent enough; returns where."""
        preemption = self._fairness.preempt_for(job, self.table, self.jobs)
        if preemption is None:
            return None
        worker = preemption.worker
        for victim in preemption.victims:
            worker.park(victim.key, is_confirmed=False)
            self._to_parked(victim, now)
            placed[worker.worker_id].victims.append(victim)
            out.append(actions.Preempted(victim.key, victim.handle, worker.worker_id, by=job.key))
        self._placement.update(worker)
        return worker

    def _charge_prompt(self, job: Job, queue: ModelQueue) -> list[Action]:
        if not job.is_prompt_charged:
            job.is_prompt_charged = True
            queue.charge(job.key.tenant, job.prompt_tokens, 0)
        return []

    def _assign(self, job: Job, worker: WorkerSlots) -> None:
        epoch = 0 if job.needs_replay else job.epoch
        worker.assign(job.key, epoch, cells_wanted(job), self._fairness.rank(job))
        job.worker_id = worker.worker_id
        self._placement.update(worker)

    def _send(self, worker: WorkerSlots, placed: Placed, now: float) -> list[Action]:
        """Preemptions travel with the first batch of those they make room for."""
        out = self._dispatch(worker, placed.new, now, placed.victims)
        left = [] if placed.new else placed.victims
        return out + self._dispatch(worker, placed.resumed, now, left)

    def _dispatch(
        self, worker: WorkerSlots, jobs: list[Job], now: float, victims: Iterable[Job] = ()
    ) -> list[Action]:
        out: list[Action] = []
        limits = self.limits
        for batch in batches.split(jobs, max_size=limits.max_batch_size, max_tokens=limits.max_batch_tokens):
            self._batches += 1
            message = worker_pb2.RequestBatch(
                batch_id=f"{self._name}-{self._batches}",
                incarnation=worker.incarnation,
                term=self.term,
                created_unix_ms=round(now * 1000),
            )
            batches.add_preemptions(message, victims)
            batches.fill(message, [self._turn(job, worker.owners[job.key]) for job in batch])
            victims = ()
            waits_s = tuple(now - job.enqueued_s for job in batch if not job.has_run)
            flight = Flight(worker.worker_id, tuple((job, job.epoch) for job in batch))
            self._flights[message.batch_id] = flight
            for job in batch:
                job.state = JobState.DISPATCHING
                job.dispatched_s = now
            out.append(
                actions.Dispatch(
                    worker_id=worker.worker_id,
                    batch=message,
                    model=batch[0].model,
                    waits_s=waits_s,
                    handles=tuple(job.handle for job in batch),
                )
            )
        return out

    def _turn(self, job: Job, owner: Owner) -> batches.Turn:
        slot = owner.slot if owner.slot is not None else 0
        return batches.Turn(job, slot, self._fairness.timeslice(job), owner.rank)

    def _announce(self, job: Job, now: float) -> Action:
        job.announced_epoch = job.epoch
        outlook = self._outlook(job)
        self._announcements.tell(job, outlook, now)
        return self._publish_queued(job, outlook)

    def _outlook(self, job: Job) -> Outlook:
        return self.queue.models[job.model].outlook(job)

    def _publish_queued(self, job: Job, outlook: Outlook) -> Action:
        chunk = outcomes.queued_chunk(job, outlook.position, outlook.expected_wait_s)
        return actions.PublishChunk(job.key, chunk)

    # From one state to the next

    def _settle(self) -> list[Action]:
        """Whoever lives has been heard: dispatching starts."""
        self.is_settled = True
        self._unplanned.update(self.queue.models)
        out: list[Action] = []
        for job, conclusion in self._deferred:
            if job.is_inherited and job.is_queued:
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
            since_s=enqueued_s,
            epoch=max(1, request.epoch),
            is_inherited=is_inherited,
            needs_replay=is_inherited,
        )

    def _admit(self, job: Job, now: float) -> list[Action]:
        """A new job waits, unless too many do already, or it could not be served in time."""
        waiting = self.queue.waiting
        if why := self._bounds.why_not(waiting, job.key.tenant):
            queue = self.queue.models.get(job.model)
            pace_s = queue.departure_interval_s if queue is not None else 0.0
            return self._conclude(job, bounds.full(why, job.key.tenant, waiting, pace_s))
        out = self._enqueue(job, now)
        if job.is_queued and job.deadline_s is not None:
            wait_s = 0.0 if self._has_room(job) else self._outlook(job).expected_wait_s
            if self._rates.is_hopeless(job, now, wait_s):
                out += self._conclude(job, self._rates.unreachable(job, now, wait_s))
        return out

    def _has_room(self, job: Job) -> bool:
        """Whether it need not wait: there is a place, or others make one."""
        if self._placement.choose(job) is not None:
            return True
        return self._fairness.preempt_for(job, self.table, self.jobs) is not None

    def _enqueue(self, job: Job, now: float) -> list[Action]:
        job.queued_s = now
        if job.is_expired(now):
            return self._conclude(job, outcomes.expired())
        if why := self._placement.why_never(job):
            return self._conclude(job, outcomes.too_large(why))
        return self._wait(job)

    def _wait(self, job: Job) -> list[Action]:
        if not job.is_queued:
            self._leave_queue(job)
            job.state = JobState.QUEUED
            self.queue.push(job)
            self._unplanned.add(job.model)
            self._fresh.append(job)
        return []

    def _read(self, job: Job) -> Action:
        job.state = JobState.READING
        job.read_id += 1
        return actions.ReadReplay(job.key, job.read_id)

    def _leave_queue(self, job: Job) -> None:
        """It does not wait any more, if it did."""
        if job.is_waiting:
            self._announcements.forget(job)
            self.queue.discard(job)
            job.state = JobState.NEW

    def _accept(self, job: Job, now: float) -> list[Action]:
        """The worker has it, and it runs there."""
        worker = self._worker_of(job)
        if worker is None or job.state is not JobState.DISPATCHING:
            return []
        worker.owners[job.key].is_accepted = True
        self._on_running(job, now)
        return [actions.TellCancel(job.key)] if job.is_cancelled else []

    def _on_running(self, job: Job, now: float) -> None:
        job.state = JobState.RUNNING
        job.is_resuming = False
        job.progressed_s = now
        self._fairness.on_running(job)

    # Turns

    def _on_yielded(
        self, worker: WorkerSlots, told: scheduler_pb2.RequestYielded, now: float
    ) -> list[Action]:
        job = self.jobs.get(RequestKey(told.tenant, told.request_id))
        if job is None or not job.is_at(worker.worker_id, told.epoch):
            return []
        residence = Residence.of(told.residence)
        if residence is Residence.RUNNING or job.state is JobState.READING:
            return []
        out = self._on_progress(worker, job, told.generated_tokens)
        worker.owners[job.key].is_accepted = True
        if job.state is JobState.PARKED:
            worker.park(job.key, residence, is_confirmed=True)
            self._replan(worker)
            return out
        reason = scheduler_pb2.YieldReason.Name(told.reason).removeprefix("YIELD_REASON_").lower()
        if told.reason == scheduler_pb2.YIELD_REASON_TIMESLICE:
            job.since_s = now
        return out + self._yield(worker, job, residence, reason, now)

    def _yield(
        self, worker: WorkerSlots, job: Job, residence: Residence, reason: str, now: float
    ) -> list[Action]:
        """The worker says that it does not run any more."""
        worker.park(job.key, residence, is_confirmed=True)
        self._to_parked(job, now)
        self._placement.update(worker)
        self._replan(worker)
        return [actions.Yielded(job.key, job.handle, worker.worker_id, reason)]

    def _to_parked(self, job: Job, now: float) -> None:
        """To the queue, while it stays on board."""
        self._fairness.on_stopped(job)
        job.parked_s = now
        self._wait_there(job)

    def _wait_there(self, job: Job) -> None:
        worker = self._worker_of(job)
        if worker is not None and worker.owners[job.key].is_running:  # it could not be told to go on
            worker.park(job.key, is_confirmed=False)
            self._placement.update(worker)
        job.is_resuming = False
        job.state = JobState.PARKED
        job.queued_s = max(job.queued_s, job.parked_s)
        self.queue.push(job)
        self._unplanned.add(job.model)

    def _take_back(self, worker: WorkerSlots, job: Job, now: float) -> None:
        """It runs, although it was to wait: the worker has not heard, or let it go on."""
        if job.state is not JobState.PARKED:
            return
        self._leave_queue(job)
        worker.resume(job.key, cells_wanted(job), self._fairness.rank(job))
        self._placement.update(worker)
        self._on_running(job, now)

    def _on_refused(self, job: Job, worker_id: str, refusal: worker_pb2.Refusal, now: float) -> list[Action]:
        reason = worker_pb2.RefusalReason.Name(refusal.reason).removeprefix("REFUSAL_REASON_").lower()
        out: list[Action] = [actions.CountRefusal(worker_id, reason)]
        match refusal.reason:
            case worker_pb2.REFUSAL_REASON_CANCELLED:
                return out + self._conclude(job, outcomes.cancelled(job, now))
            case worker_pb2.REFUSAL_REASON_INVALID:
                return out + self._conclude(job, outcomes.invalid(refusal.message))
            case worker_pb2.REFUSAL_REASON_NOT_ON_BOARD:
                return out + self._lose(job, Loss.NOT_ON_BOARD, now)
        self._hold_worker(worker_id)
        if job.is_resuming:
            self._wait_there(job)
            return out
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
        out: list[Action] = [actions.CountRetry(job.key, cause.value, job.handle)]
        if must_drop and job.worker_id is not None:
            out.append(self._drop(job.worker_id, job.key, job.epoch))
        self._leave_queue(job)
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
        self._leave_queue(job)
        self._release(job)
        job.conclusion = conclusion
        if job.needs_replay:
            return [] if job.state is JobState.READING else [self._read(job)]
        chunk = outcomes.terminal_chunk(job, conclusion)
        return [actions.PublishChunk(job.key, chunk), *self._end(job, outcome_of(chunk))]

    def _end(self, job: Job, outcome: str) -> list[Action]:
        """Its terminal chunk is out."""
        self._leave_queue(job)
        self._release(job)
        job.state = JobState.ENDED
        del self.jobs[job.key]
        self._ended.remember(job.key, job.sequence)
        return [actions.Ack(job.handle, job.model, outcome)]

    def _release(self, job: Job) -> None:
        """Take it off its worker, if one has it."""
        self._fairness.on_stopped(job)
        worker = self._worker_of(job)
        job.worker_id = None
        if worker is not None:
            worker.release(job.key)
            self._placement.update(worker)
            self._replan(worker)

    # What heartbeats and events lead to

    def _on_request_ended(
        self,
        worker: WorkerSlots | None,
        worker_id: str,
        key: RequestKey,
        ended: scheduler_pb2.RequestEnded,
    ) -> list[Action]:
        job = self.jobs.get(key)
        out: list[Action] = []
        if job is not None and worker is not None and job.is_at(worker_id, ended.epoch):
            job.seen_tokens = max(job.seen_tokens, ended.usage.completion_tokens)
            out += self._charge(job)
            if ended.time_to_first_token_ms:
                seconds = ended.time_to_first_token_ms / 1000
                out.append(actions.CountFirstToken(job.model, job.priority, seconds))
        return out + self._on_ended(worker_id, key, ended.epoch, ended.outcome)

    def _on_ended(self, worker_id: str, key: RequestKey, epoch: int, outcome: str) -> list[Action]:
        job = self.jobs.get(key)
        if job is None:
            return []
        if not job.is_at(worker_id, epoch) or job.state is JobState.READING:
            return []
        if job.is_adopted:  # readers may have seen a later epoch than this one: look whether it was their end
            self._leave_queue(job)
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
            job = self.jobs.get(RequestKey(on_board.tenant, on_board.request_id))
            if job is None or not job.is_at(worker.worker_id, on_board.epoch):
                continue
            job.engine_deaths += job.state in (JobState.DISPATCHING, JobState.RUNNING)
            out += self._lose(job, Loss.ENGINE_DIED, now)
        self._placement.update_models(worker)
        return out

    def _on_stray(self, worker: WorkerSlots, stray: Stray, now: float) -> list[Action]:
        job = self.jobs.get(stray.key)
        if job is None:
            has_waited = self.is_settled and now - stray.since_s >= self.limits.orphan_grace_s
            if has_waited or stray.key in self._ended:
                return [self._drop(worker.worker_id, stray.key, stray.epoch)]
            self._orphans[stray.key] = worker.worker_id
            return []
        is_waiting = job.state in (JobState.QUEUED, JobState.READING)
        if (is_waiting and (job.is_inherited or stray.epoch == job.epoch)) or stray.epoch > job.epoch:
            if worker.can_adopt(stray):
                self._adopt(job, worker, stray, now)
            return []
        return [self._drop(worker.worker_id, stray.key, stray.epoch)]

    def _orphan(self, key: RequestKey) -> tuple[WorkerSlots, Stray] | None:
        worker = self.table.get(self._orphans.pop(key, ""))
        stray = worker.strays.get(key) if worker is not None else None
        return (worker, stray) if worker is not None and stray is not None else None

    def _adopt(self, job: Job, worker: WorkerSlots, stray: Stray, now: float) -> None:
        """It runs already: take note where."""
        self._leave_queue(job)
        self._release(job)
        worker.adopt(stray, cells_wanted(job), self._fairness.rank(job))
        job.read_id += 1
        job.conclusion = None
        job.is_inherited = False
        job.is_adopted = True
        job.epoch = stray.epoch
        job.worker_id = worker.worker_id
        job.dispatched_s = job.dispatched_s or now
        self._placement.update(worker)
        if stray.residence is Residence.RUNNING:
            self._on_running(job, now)
        else:
            self._to_parked(job, now)

    def _forget(
        self, worker: WorkerSlots, cause: Loss, now: float, *, is_final: bool = False
    ) -> list[Action]:
        """A worker is gone, and what it had is lost. One that was only silent may come back."""
        del self.table.workers[worker.worker_id]
        self._placement.remove(worker)
        self._rates.remove(worker.worker_id)
        if is_final:
            self._remember_gone(worker.worker_id, worker.incarnation)
            self._drains.end(worker.worker_id)
        out: list[Action] = []
        for key in list(worker.owners):
            out += self._lose(self.jobs[key], cause, now)
        return out

    def _remember_gone(self, worker_id: str, incarnation: str) -> None:
        self._gone.remember((worker_id, incarnation), None)

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
            for job in [j for j in queue if j.is_queued and now - j.queued_s >= timeout_s]:
                out += self._conclude(job, outcomes.no_worker(job, timeout_s))
        self.queue.forget_empty(self._placement.is_served)
        return out

    def _worker_of(self, job: Job) -> WorkerSlots | None:
        return self.table.get(job.worker_id) if job.worker_id is not None else None

    def _hold_worker(self, worker_id: str) -> None:
        if (worker := self.table.get(worker_id)) is not None:
            worker.is_held = True
            self._placement.update(worker)

    def _replan(self, worker: WorkerSlots) -> None:
        if worker.can_resume:
            self._unplanned.update(m for m in worker.context_lengths if self.queue.models.get(m))

    def _drop(self, worker_id: str, key: RequestKey, epoch: int) -> Action:
        command = worker_pb2.WorkerCommand()
        command.drop.request_id = key.request_id
        command.drop.tenant = key.tenant
        command.drop.epoch = epoch
        return self._command(worker_id, command)

    def _command(self, worker_id: str, command: worker_pb2.WorkerCommand) -> Action:
        command.term = self.term
        return actions.SendCommand(worker_id, command)
