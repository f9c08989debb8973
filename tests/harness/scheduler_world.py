"""A world around the scheduler's core: workers, a token stream, clients, and a network that may misbehave.

Everything is stepped by the test; nothing here looks at a clock. Token `i` of every request is `i`, so that
what a client holds tells whether any was lost or doubled.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from inferflux.scheduler.core import actions
from inferflux.scheduler.core.emitted import Emitted, assemble, outcome_of
from inferflux.scheduler.core.fairness import FairnessSettings
from inferflux.scheduler.core.jobs import Attempt, JobState, RequestKey
from inferflux.scheduler.core.limits import Limits
from inferflux.scheduler.core.policies import PolicyName
from inferflux.scheduler.core.scheduler import SchedulerCore
from inferflux.scheduler.core.slots import Residence
from inferflux.v1 import generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2

MODEL = "demo"
CONTEXT = 64


def make_request(
    request_id: str,
    *,
    tenant: str = "acme",
    model: str = MODEL,
    prompt: int = 4,
    max_tokens: int = 4,
    priority: int = 0,
    at: float = 0.0,
    deadline: float = 0.0,
    attempt: str = "",
    window_s: int = 0,
) -> scheduler_pb2.InferenceRequest:
    request = scheduler_pb2.InferenceRequest(
        request_id=request_id,
        tenant=tenant,
        model=model,
        prompt_token_ids=[1] * prompt,
        priority=priority,
        enqueued_unix_ms=round(at * 1000),
        deadline_unix_ms=round(deadline * 1000),
        epoch=1,
        attempt_id=attempt,
        resume_window_s=window_s,
    )
    request.params.max_tokens = max_tokens
    return request


RUNNING = scheduler_pb2.RESIDENCE_RUNNING
PARKED = scheduler_pb2.RESIDENCE_PARKED
SWAPPED = scheduler_pb2.RESIDENCE_SWAPPED


@dataclass
class Sequence:
    request: scheduler_pb2.InferenceRequest
    slot: int
    generated: int
    # Generated before it came here.
    inherited: int = 0
    # New tokens left of its turn; None for no bound.
    left: int | None = None
    rank: float = 0.0
    residence: scheduler_pb2.Residence.ValueType = RUNNING

    @property
    def key(self) -> RequestKey:
        return RequestKey(self.request.tenant, self.request.request_id)

    @property
    def epoch(self) -> int:
        return self.request.epoch

    @property
    def cells(self) -> int:
        """Used now."""
        return 0 if self.residence == SWAPPED else len(self.request.prompt_token_ids) + self.generated

    @property
    def is_running(self) -> bool:
        return self.residence == RUNNING

    @property
    def cells_at_most(self) -> int:
        n_prompt = len(self.request.prompt_token_ids)
        return max(n_prompt, n_prompt + self.request.params.max_tokens - 1)


@dataclass
class SimWorker:
    """What a worker does, as its contract says, without an engine. It has twice as many sequence slots as may
    run at once."""

    world: World
    worker_id: str
    incarnation: str
    slots: int = 2
    kv_cells: int = 32
    term: int = 0
    state: scheduler_pb2.WorkerState.ValueType = scheduler_pb2.WORKER_STATE_READY
    running: dict[RequestKey, Sequence] = field(default_factory=dict)
    ended: list[tuple[RequestKey, int]] = field(default_factory=list)
    cancelled: set[Attempt] = field(default_factory=set)
    batches: list[worker_pb2.RequestBatch] = field(default_factory=list)
    # Steps until its engine has started again.
    starting: int = 0

    def status(self) -> scheduler_pb2.WorkerStatus:
        status = scheduler_pb2.WorkerStatus(
            worker_id=self.worker_id,
            incarnation=self.incarnation,
            state=self.state,
            slots=self.slots,
            sequences=2 * self.slots,
            kv_cells=self.kv_cells,
            kv_cells_reserved=sum(s.cells for s in self.running.values() if s.is_running),
            term=self.term,
            started_unix_ms=int(self.incarnation.removeprefix("i")),
        )
        status.models.add(name=MODEL, context_length=CONTEXT)
        for key, sequence in self.running.items():
            status.running.add(
                tenant=key.tenant,
                request_id=key.request_id,
                epoch=sequence.epoch,
                slot=sequence.slot,
                prompt_tokens=len(sequence.request.prompt_token_ids),
                generated_tokens=sequence.generated,
                residence=sequence.residence,
            )
        for key, epoch in self.ended[-16:]:
            status.ended.add(tenant=key.tenant, request_id=key.request_id, epoch=epoch)
        return status

    def on_batch(self, batch: worker_pb2.RequestBatch) -> worker_pb2.BatchAccepted:
        self.batches.append(batch)
        answer = worker_pb2.BatchAccepted(batch_id=batch.batch_id)
        reason = self._batch_refusal(batch)
        if reason is None:
            for preemption in batch.preemptions:
                victim = self.running.get(RequestKey(preemption.tenant, preemption.request_id))
                if victim is not None and victim.epoch == preemption.epoch and victim.is_running:
                    self._stop(victim, PARKED, scheduler_pb2.YIELD_REASON_PREEMPTED)
        is_resuming = batch.phase == worker_pb2.PHASE_DECODE
        for item in batch.items:
            why = reason or (self._resume(item) if is_resuming else self._start(item))
            if why is None:
                answer.accepted_request_ids.append(item.request.request_id)
            else:
                answer.refused.add(request_id=item.request.request_id, reason=why, message="no")
        return answer

    def _batch_refusal(self, batch: worker_pb2.RequestBatch) -> worker_pb2.RefusalReason.ValueType | None:
        if batch.incarnation != self.incarnation:
            return worker_pb2.REFUSAL_REASON_WRONG_INCARNATION
        if batch.term < self.term:
            return worker_pb2.REFUSAL_REASON_OLD_TERM
        self.term = batch.term
        return None

    def _start(self, item: worker_pb2.BatchItem) -> worker_pb2.RefusalReason.ValueType | None:
        reason = self._refusal(item)
        if reason is None:
            self._vacate(item)
            n = len(item.request.generated_token_ids)
            self.running[key_of(item.request)] = Sequence(
                item.request, item.slot, n, n, item.token_budget or None, item.rank
            )
        return reason

    def _resume(self, item: worker_pb2.BatchItem) -> worker_pb2.RefusalReason.ValueType | None:
        sequence = self.running.get(key_of(item.request))
        if sequence is None or sequence.epoch != item.request.epoch:
            return worker_pb2.REFUSAL_REASON_NOT_ON_BOARD
        if not sequence.is_running:
            if self._n_running >= self.slots or self._is_slot_running(item.slot):
                return worker_pb2.REFUSAL_REASON_SLOT_BUSY
            if sequence.residence == SWAPPED:
                self._vacate(item)
                sequence.slot = item.slot
            sequence.residence = RUNNING
            sequence.left, sequence.rank = item.token_budget or None, item.rank
        return None

    @property
    def _n_running(self) -> int:
        return sum(s.is_running for s in self.running.values())

    def _is_slot_running(self, slot: int) -> bool:
        return any(s.slot == slot and s.is_running for s in self.running.values())

    def _vacate(self, item: worker_pb2.BatchItem) -> None:
        """Swap out what is parked in the slot."""
        for sequence in self.running.values():
            if (
                sequence.slot == item.slot
                and sequence.residence == PARKED
                and sequence.key != key_of(item.request)
            ):
                self._stop(sequence, SWAPPED, scheduler_pb2.YIELD_REASON_PREEMPTED)

    def _stop(
        self,
        sequence: Sequence,
        residence: scheduler_pb2.Residence.ValueType,
        reason: scheduler_pb2.YieldReason.ValueType,
    ) -> None:
        sequence.residence = residence
        event = self.event()
        told = event.request_yielded
        told.tenant, told.request_id = sequence.key
        told.epoch, told.generated_tokens = sequence.epoch, sequence.generated
        told.residence, told.reason = residence, reason
        self.world.tell(lambda: self.world.core.on_event(event, self.world.now))

    def _relieve(self) -> None:
        """Swap the least urgent out until the next step fits."""
        while sum(s.cells for s in self.running.values()) > self.kv_cells:
            holders = [s for s in self.running.values() if s.cells]
            parked = [s for s in holders if not s.is_running]
            victim = max(parked or holders, key=lambda s: s.rank)
            self._stop(victim, SWAPPED, scheduler_pb2.YIELD_REASON_MEMORY)

    def _refusal(self, item: worker_pb2.BatchItem) -> worker_pb2.RefusalReason.ValueType | None:
        key = key_of(item.request)
        if self.state != scheduler_pb2.WORKER_STATE_READY:
            return worker_pb2.REFUSAL_REASON_NOT_READY
        old = self.running.get(key)
        if old is not None and old.epoch >= item.request.epoch:
            return worker_pb2.REFUSAL_REASON_INVALID
        if Attempt(key, item.request.attempt_id) in self.cancelled:
            return worker_pb2.REFUSAL_REASON_CANCELLED
        others = [s for s in self.running.values() if s is not old and s.is_running]
        if len(others) >= self.slots or any(s.slot == item.slot for s in others):
            return worker_pb2.REFUSAL_REASON_SLOT_BUSY
        if Sequence(item.request, item.slot, 0).cells_at_most > self.kv_cells:
            return worker_pb2.REFUSAL_REASON_NO_MEMORY
        return None

    def on_command(self, command: worker_pb2.WorkerCommand) -> None:
        if command.term < self.term:
            return
        self.term = command.term
        match command.WhichOneof("command"):
            case "drain":
                self.state = scheduler_pb2.WORKER_STATE_DRAINING
            case "undrain":
                self.state = scheduler_pb2.WORKER_STATE_READY
        drop = command.drop
        sequence = self.running.get(RequestKey(drop.tenant, drop.request_id))
        if sequence is not None and sequence.epoch <= drop.epoch:
            del self.running[sequence.key]

    def on_cancel(self, attempt: Attempt) -> None:
        sequence = self.running.get(attempt.key)
        if sequence is not None and attempt.attempt_id in ("", sequence.request.attempt_id):
            self._finish(sequence, generation_pb2.FINISH_REASON_CANCELLED)
        elif attempt.attempt_id:
            self.cancelled.add(attempt)

    def step(self) -> None:
        """One token for every sequence that runs, unless one of them kills the engine."""
        if self.starting:
            self.starting -= 1
            if not self.starting:
                self.state = scheduler_pb2.WORKER_STATE_READY
            return
        running = [s for s in self.running.values() if s.is_running]
        killers = [s for s in running if s.key in self.world.killers]
        if any(self.world.killers[s.key](s, len(running)) for s in killers):
            self.world.deaths.append({s.key for s in running})
            self.die_engine()
            self.state = scheduler_pb2.WORKER_STATE_LOADING
            self.starting = self.world.restart_steps
            return
        self._relieve()
        for sequence in [s for s in self.running.values() if s.is_running]:
            chunk = self._chunk(sequence)
            chunk.token_ids.append(sequence.generated)
            sequence.generated += 1
            if sequence.generated >= sequence.request.params.max_tokens:
                self._finish(sequence, generation_pb2.FINISH_REASON_LENGTH, chunk)
            else:
                self.world.publish(sequence.key, chunk)
                if sequence.left is not None:
                    sequence.left -= 1
                if sequence.left == 0:
                    self._stop(sequence, PARKED, scheduler_pb2.YIELD_REASON_TIMESLICE)

    def _finish(
        self,
        sequence: Sequence,
        reason: generation_pb2.FinishReason.ValueType,
        chunk: tokens_pb2.TokenChunk | None = None,
    ) -> None:
        chunk = chunk or self._chunk(sequence)
        chunk.finished.reason = reason
        self.world.publish(sequence.key, chunk)
        del self.running[sequence.key]
        self.ended.append((sequence.key, sequence.epoch))
        event = self.event()
        event.request_ended.tenant, event.request_ended.request_id = sequence.key
        event.request_ended.epoch = sequence.epoch
        event.request_ended.outcome = outcome_of(chunk)
        self.world.tell(lambda: self.world.core.on_event(event, self.world.now))

    def die_engine(self) -> None:
        event = self.event()
        event.engine_died.message = "killed"
        self._list_on_board(event.engine_died.on_board)
        self.running.clear()
        self.world.tell(lambda: self.world.core.on_event(event, self.world.now))

    def leave(self) -> None:
        event = self.event()
        event.worker_left.SetInParent()
        self._list_on_board(event.worker_left.on_board)
        self.running.clear()
        self.world.tell(lambda: self.world.core.on_event(event, self.world.now))

    def die(self) -> None:
        """Its process is gone, as its witness reports."""
        event = self.event()
        event.worker_died.SetInParent()
        self.running.clear()
        self.world.tell(lambda: self.world.core.on_event(event, self.world.now))

    def beat(self) -> None:
        status = self.status()
        self.world.tell(lambda: self.world.core.on_heartbeat(status, self.world.now))

    def event(self) -> scheduler_pb2.WorkerEvent:
        return scheduler_pb2.WorkerEvent(worker_id=self.worker_id, incarnation=self.incarnation)

    def _list_on_board(self, listed: object) -> None:
        for key, sequence in self.running.items():
            listed.add(tenant=key.tenant, request_id=key.request_id, epoch=sequence.epoch)  # type: ignore[attr-defined]

    def _chunk(self, sequence: Sequence) -> tokens_pb2.TokenChunk:
        return tokens_pb2.TokenChunk(
            request_id=sequence.key.request_id, epoch=sequence.epoch, offset=sequence.generated
        )


def key_of(request: scheduler_pb2.InferenceRequest) -> RequestKey:
    return RequestKey(request.tenant, request.request_id)


class _Handle:
    """What acknowledges a job."""


def still_held(world: World, requests: Iterable[scheduler_pb2.InferenceRequest]) -> int:
    """Queue, plan and cancel each request; how many of their jobs the core still has in memory then."""
    handles: list[weakref.ref[_Handle]] = []
    for sequence, request in enumerate(requests, start=1):
        handle = _Handle()
        handles.append(weakref.ref(handle))
        world.core.on_job(request, handle, sequence, world.now)
        world.core.plan(world.now)
        world.core.on_cancel(Attempt(key_of(request)), world.now)
        del handle
    return sum(handle() is not None for handle in handles)


Delivery = Callable[[], list[actions.Action] | None]


class World:
    """Messages wait in `network` until they are delivered: in order by `settle`, or as a test likes."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        now: float = 1000.0,
        policy: PolicyName = "priority",
        fairness: FairnessSettings | None = None,
        ordinary_share: float = 0.25,
    ) -> None:
        self.limits = limits or Limits(settle_s=0.0, clock_skew_s=-1e6)
        self.now = now
        self._policy = policy
        self._fairness = fairness
        self._ordinary_share = ordinary_share
        self.core = self._new_core(1)
        self.workers: dict[str, SimWorker] = {}
        self.network: list[Delivery] = []
        # Batches sent and not answered yet, by id: the worker they are for.
        self.in_flight: dict[str, str] = {}
        # The work queue: jobs not acknowledged yet, by their place in it.
        self.jobs: dict[int, scheduler_pb2.InferenceRequest] = {}
        self.acks: dict[int, list[str]] = {}
        self.log: dict[RequestKey, list[tokens_pb2.TokenChunk]] = {}
        self.clients: dict[RequestKey, list[tokens_pb2.TokenChunk]] = {}
        self.requests: dict[RequestKey, scheduler_pb2.InferenceRequest] = {}
        self.commands: list[tuple[str, worker_pb2.WorkerCommand]] = []
        self.holds = 0
        # Whether a running request kills its engine in this step, with so many running.
        self.killers: dict[RequestKey, Callable[[Sequence, int], bool]] = {}
        self.restart_steps = 1
        # What ran on each engine that was killed so.
        self.deaths: list[set[RequestKey]] = []
        self._sequence = 0
        self._incarnations = 0

    # The world's doings

    def add_worker(self, worker_id: str, *, slots: int = 2, kv_cells: int = 32) -> SimWorker:
        """Start a worker, or start it anew."""
        self._incarnations += 1
        worker = SimWorker(self, worker_id, f"i{self._incarnations}", slots=slots, kv_cells=kv_cells)
        self.workers[worker_id] = worker
        worker.beat()
        return worker

    def submit(self, request: scheduler_pb2.InferenceRequest) -> RequestKey:
        self._sequence += 1
        key = key_of(request)
        self.jobs[self._sequence] = request
        self.requests[key] = request
        self.clients[key] = []
        self.log[key] = []
        self.deliver_job(self._sequence)
        return key

    def deliver_job(self, sequence: int) -> None:
        request = scheduler_pb2.InferenceRequest()
        request.CopyFrom(self.jobs[sequence])
        core = self.core  # what is on its way to a scheduler does not reach the next

        def deliver_job() -> list[actions.Action]:
            return core.on_job(request, sequence, sequence, self.now) if core is self.core else []

        self.tell(deliver_job)

    def cancel(self, key: RequestKey, attempt_id: str = "") -> None:
        attempt = Attempt(key, attempt_id)
        self.tell(lambda: self.core.on_cancel(attempt, self.now)[1])
        self._tell_workers_cancel(attempt)

    def restart_scheduler(self) -> None:
        """Kill it, start another: what it had in its hands is lost, jobs come again."""
        self.now += 1.0
        self.core = self._new_core(self.core.term + 1)
        self.in_flight.clear()
        for sequence in self.jobs:
            self.deliver_job(sequence)

    def _new_core(self, term: int) -> SchedulerCore:
        return SchedulerCore(
            self.limits,
            now=self.now,
            name=f"s{self.now}",
            policy=self._policy,
            fairness=self._fairness,
            ordinary_share=self._ordinary_share,
            term=term,
        )

    def forget_tokens(self) -> None:
        """The replay buffer is in memory: a restart of NATS loses it."""
        for chunks in self.log.values():
            chunks.clear()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.do(self.core.on_tick(self.now))

    # The network

    def tell(self, delivery: Delivery) -> None:
        self.network.append(delivery)

    def deliver(self, index: int = 0) -> None:
        delivery = self.network.pop(index)
        self.do(delivery() or [])

    def settle(self) -> None:
        """Deliver everything in order, and what follows from it."""
        while self.network:
            self.deliver()

    def live(self, seconds: int) -> None:
        """Let the world run in order for a while: heartbeats each second, and a token per sequence."""
        for _ in range(seconds):
            if self.is_quiet:
                return
            for worker in list(self.workers.values()):
                worker.step()
                worker.beat()
            self.settle()
            for _ in range(4):
                self.pass_time(0.25)
                self.settle()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is to be done any more."""
        is_idle = not any(worker.running for worker in self.workers.values())
        return is_idle and not (self.network or self.jobs or self.core.jobs)

    def time_out(self, batch_id: str) -> None:
        del self.in_flight[batch_id]
        self.do(self.core.on_batch_unanswered(batch_id, is_delivered=True, now=self.now))

    # The scheduler's doings

    def do(self, todo: list[actions.Action]) -> None:
        for action in [*todo, *self.core.plan(self.now)]:
            self._perform(action)

    def _perform(self, action: actions.Action) -> None:
        match action:
            case actions.Dispatch():
                self.in_flight[action.batch.batch_id] = action.worker_id
                self.tell(lambda: self._deliver_batch(action))
            case actions.ReadReplay():
                emitted = assemble(self.log[action.key])
                core = self.core
                self.tell(lambda: self._deliver_replay(core, action, emitted))
            case actions.PublishChunk():
                self.publish(action.key, action.chunk)
            case actions.SendCommand():
                self.commands.append((action.worker_id, action.command))
                self.tell(lambda: self._deliver_command(action))
            case actions.TellCancel():
                self.cancel(action.key, action.attempt_id)
            case actions.Ack():
                assert isinstance(action.handle, int)
                self.acks.setdefault(action.handle, []).append(action.outcome)
                self.jobs.pop(action.handle, None)
            case actions.Hold():
                self.holds += 1

    def publish(self, key: RequestKey, chunk: tokens_pb2.TokenChunk) -> None:
        copy = tokens_pb2.TokenChunk()
        copy.CopyFrom(chunk)
        self.log[key].append(copy)
        self.clients[key].append(copy)

    def read(self, key: RequestKey) -> Emitted:
        """What the client holds."""
        return assemble(self.clients[key])

    def _deliver_batch(self, action: actions.Dispatch) -> list[actions.Action]:
        core, batch_id = self.core, action.batch.batch_id
        worker = self.workers.get(action.worker_id)
        if worker is None:
            self.in_flight.pop(batch_id, None)
            return core.on_batch_unanswered(batch_id, is_delivered=False, is_gone=True, now=self.now)
        batch = worker_pb2.RequestBatch.FromString(action.batch.SerializeToString())
        answer = worker.on_batch(batch)
        self.tell(lambda: self._deliver_answer(core, answer))
        return []

    def _deliver_answer(self, core: SchedulerCore, answer: worker_pb2.BatchAccepted) -> list[actions.Action]:
        if core is not self.core:
            return []
        self.in_flight.pop(answer.batch_id, None)
        return core.on_batch_answer(answer, self.now)

    def _deliver_replay(
        self, core: SchedulerCore, action: actions.ReadReplay, emitted: Emitted
    ) -> list[actions.Action]:
        if core is not self.core:
            return []
        return core.on_replay(action.key, action.read_id, emitted, self.now)

    def _deliver_command(self, action: actions.SendCommand) -> None:
        if (worker := self.workers.get(action.worker_id)) is not None:
            worker.on_command(action.command)

    def _tell_workers_cancel(self, attempt: Attempt) -> None:
        for worker_id in list(self.workers):
            self.tell(lambda worker_id=worker_id: self._deliver_cancel(worker_id, attempt))  # type: ignore[misc]

    def _deliver_cancel(self, worker_id: str, attempt: Attempt) -> None:
        if (worker := self.workers.get(worker_id)) is not None:
            worker.on_cancel(attempt)

    # What must hold at any time

    def check(self) -> None:
        """The table and the jobs agree; a slot has one owner."""
        core = self.core
        placed: dict[tuple[str, int], RequestKey] = {}
        for worker in core.table.workers.values():
            for key, owner in worker.owners.items():
                job = core.jobs[key]
                assert job.worker_id == worker.worker_id
                assert owner.is_running == (job.state is not JobState.PARKED)
                assert (owner.slot is None) == (owner.residence is Residence.SWAPPED)
                if owner.slot is not None:
                    assert (worker.worker_id, owner.slot) not in placed, "two owners of one slot"
                    placed[worker.worker_id, owner.slot] = key
            running = [o for o in worker.owners.values() if o.is_running]
            assert worker.owned_cells == sum(o.cells for o in running)
            assert worker.free_slots == max(0, worker.slots - len(running) - worker.strays_running)
        held = Counter((j.model, j.key.tenant) for j in core.jobs.values() if j.has_place)
        for model, places in core.queue.running.items():
            tenants = {tenant for _, tenant in held} | {key.tenant for key in core.jobs}
            assert {t: n for t in tenants if (n := places.of(t))} == {
                t: n for (m, t), n in held.items() if m == model
            }
        for key, job in core.jobs.items():
            is_bound = job.worker_id is not None and job.state is not JobState.PARKED
            assert job.has_place == is_bound
            has_place = job.state in (JobState.DISPATCHING, JobState.RUNNING, JobState.PARKED)
            assert (job.worker_id is not None) == has_place or job.state is JobState.READING
            assert job.worker_id is None or key in core.table.workers[job.worker_id].owners
            assert job.sequence in self.jobs, "held after it was acknowledged"
        queued = {job.key for queue in core.queue.models.values() for job in queue}
        assert queued == {k for k, j in core.jobs.items() if j.is_waiting}

    def check_quiet(self) -> None:
        """Nothing is left behind, and every client has had its end and each token once."""
        assert not self.core.jobs
        assert not any(self.core.queue.running.values())
        assert not self.jobs, "jobs not acknowledged"
        for view in self.core.table.workers.values():
            assert not view.owners
            assert view.free_slots == view.slots
            assert view.owned_cells == view.stray_cells == 0
        for worker in self.workers.values():
            assert not worker.running
        for key, chunks in self.clients.items():
            emitted = self.read(key)
            assert emitted.outcome, f"{key} never ended"
            assert emitted.token_ids == list(range(len(emitted.token_ids)))
            if emitted.outcome == "length":
                assert len(emitted.token_ids) == self.requests[key].params.max_tokens
            terminals = [c.epoch for c in chunks if outcome_of(c)]
            assert len(terminals) == len(set(terminals)), "two ends in one epoch"
