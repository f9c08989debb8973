"""A world around the scheduler's core: workers, a token stream, clients, and a network that may misbehave.

Everything is stepped by the test; nothing here looks at a clock. Token `i` of every request is `i`, so that
what a client holds tells whether any was lost or doubled.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable

from benchmarks.sim.contract import PARKED, RUNNING, SWAPPED, ContractWorker, Sequence, Size, key_of
from inferflux.common.contract.messages.repeats import Repeats
from inferflux.common.contract.partitions import WHOLE, Partition
from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.scheduler.core.order.queue_policies import PolicyName
from inferflux.scheduler.core.scheduler import SchedulerCore
from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.jobs import Attempt, JobState, RequestKey
from inferflux.scheduler.core.types.limits import Limits
from inferflux.scheduler.core.types.replayed import ReplayedTokens, assemble, outcome_of
from inferflux.v1 import generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2

MODEL = "demo"
CONTEXT = 64

__all__ = ["PARKED", "RUNNING", "SWAPPED", "Sequence", "SimWorker", "World", "key_of", "make_request"]


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
    zone: str = "",
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
        zone=zone,
    )
    request.params.max_tokens = max_tokens
    return request


class SimWorker(ContractWorker):
    """A worker in the test's world. Its engine makes a step, of a token for every sequence, when the test
    wants it."""

    def __init__(self, world: World, worker_id: str, number: int, size: Size, model: str = MODEL) -> None:
        super().__init__(worker_id, f"i{number}", model, size, started_at=number)
        self.world = world
        self.batches: list[worker_pb2.RequestBatch] = []
        self.pool = self.zone = ""
        self.digest = ""
        self.role: scheduler_pb2.WorkerRole.ValueType = scheduler_pb2.WORKER_ROLE_UNSPECIFIED
        # Whether other workers can fetch KV state from it.
        self.is_source = False
        self.leaves_in_ms: int | None = None
        # Tokens a second that it says it computes of prompts.
        self.prefill_rate = 0.0
        # What it was told to fetch, by request.
        self.taking: dict[RequestKey, worker_pb2.TakeState] = {}
        # Steps until its engine has started again.
        self.starting = 0
        self._heartbeats = Repeats(lambda data, _: scheduler_pb2.WorkerStatus.FromString(data))

    def on_batch(self, batch: worker_pb2.RequestBatch) -> worker_pb2.BatchAccepted:
        self.batches.append(batch)
        return super().on_batch(batch)

    def step(self) -> None:
        """One token for every sequence that runs, unless one of them kills the engine."""
        if self.starting:
            self.starting -= 1
            if not self.starting:
                self.state = scheduler_pb2.WORKER_STATE_READY
            return
        running = self.running()
        killers = [s for s in running if s.key in self.world.killers]
        if any(self.world.killers[s.key](s, len(running)) for s in killers):
            self.world.deaths.append({s.key for s in running})
            self.die_engine()
            self.state = scheduler_pb2.WORKER_STATE_LOADING
            self.starting = self.world.restart_steps
            return
        for sequence in running:
            if sequence.is_running:  # a more urgent one may have taken its cells
                self.fit(sequence.uncomputed)
            if sequence.is_running and sequence.uncomputed <= self.size.kv_cells - self.cells_used:
                sequence.computed += sequence.uncomputed
                self.generate(sequence, 1)

    def beat(self, *, is_early: bool = False) -> None:
        """Send a heartbeat.

        Args:
            is_early: before the engine has reported what it was asked since its last step.
        """
        status = self.status()
        status.pool, status.zone, status.role = self.pool, self.zone, self.role
        status.models[0].digest = self.digest
        status.prefill_tokens_per_s = self.prefill_rate
        if self.leaves_in_ms is not None:
            status.leaves_in_ms = self.leaves_in_ms
        if self.is_source:
            source = status.kv_source
            source.worker_id, source.incarnation = self.worker_id, self.incarnation
            source.exchange, source.ticket = "shm", f"ticket of {self.worker_id}"
            status.exchange, status.kv_bytes = "shm", 1000 * status.kv_cells
        if is_early:
            for resident in status.residents:
                if not resident.computed_tokens:
                    resident.residence = scheduler_pb2.RESIDENCE_UNSPECIFIED
                    resident.run = resident.slot = 0
        # As it comes over the bus: one that says what the last one said is the same object.
        received = self._heartbeats.parse(status.SerializeToString(), self.worker_id)
        self.world.tell(lambda: self.world.core.on_heartbeat(received, self.world.now))

    def take_state(self, wanted: worker_pb2.TakeState) -> None:
        """Fetch what another worker computes: the test says when it is here."""
        self.taking[RequestKey(wanted.tenant, wanted.request_id)] = wanted

    def take_no_more(self, key: RequestKey, epoch: int) -> None:
        wanted = self.taking.get(key)
        if wanted is not None and wanted.origin.epoch <= epoch:
            del self.taking[key]

    def taken(self, key: RequestKey, tokens: int = 0, error: str = "") -> None:
        """Say that what it was told to fetch is here, or will not come."""
        event = self.event()
        told = event.state_taken
        told.tenant, told.request_id = key
        told.epoch = self.taking.pop(key).origin.epoch
        told.tokens, told.error = tokens, error
        self.tell(event)

    def die(self) -> None:
        """Its process is gone, as its witness reports."""
        event = self.event()
        event.worker_died.SetInParent()
        self.residents.clear()
        self.tell(event)

    def tell(self, event: scheduler_pb2.WorkerEvent) -> None:
        self.world.tell(lambda: self.world.core.on_event(event, self.world.now))

    def on_copy(self, cells: int) -> None:
        """Copies take no time here."""

    def emit(self, sequence: Sequence, tokens: int) -> None:
        first = sequence.generated - tokens
        chunk = self.chunk(sequence, offset=first)
        chunk.token_ids.extend(range(first, sequence.generated))
        self.world.publish(sequence.key, chunk)

    def emit_end(self, sequence: Sequence, reason: generation_pb2.FinishReason.ValueType) -> None:
        chunk = self.chunk(sequence, offset=sequence.generated)
        chunk.finished.reason = reason
        self.world.publish(sequence.key, chunk)

    @staticmethod
    def chunk(sequence: Sequence, *, offset: int) -> tokens_pb2.TokenChunk:
        return tokens_pb2.TokenChunk(request_id=sequence.key.request_id, epoch=sequence.epoch, offset=offset)


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
        world.core.cancels.on_cancel(Attempt(key_of(request)), world.now)
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
        partition: Partition = WHOLE,
    ) -> None:
        self.limits = limits or Limits(settle_s=0.0)
        self.now = now
        self._policy = policy
        self._fairness = fairness
        self._ordinary_share = ordinary_share
        self._partition = partition
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
        self.probed: list[str] = []
        self.commands: list[tuple[str, worker_pb2.WorkerCommand]] = []
        self.holds = 0
        # Why requests were to move, and what became of that.
        self.moved: set[tuple[str, str]] = set()
        # What the prefix index says of a request that is read; None: it is not asked.
        self.cached_now: Callable[[scheduler_pb2.InferenceRequest], dict[str, int]] | None = None
        # Whether a running request kills its engine in this step, given how many run.
        self.killers: dict[RequestKey, Callable[[Sequence, int], bool]] = {}
        self.restart_steps = 1
        # What ran on each engine that was killed so.
        self.deaths: list[set[RequestKey]] = []
        self._sequence = 0
        # Jobs up to here may have run under a scheduler before this one.
        self._inherited_through = 0
        self._incarnations = 0

    # The world's doings

    def add_worker(
        self,
        worker_id: str,
        *,
        slots: int = 2,
        kv_cells: int = 32,
        model: str = MODEL,
        digest: str = "",
        role: scheduler_pb2.WorkerRole.ValueType = scheduler_pb2.WORKER_ROLE_UNSPECIFIED,
        is_source: bool = False,
        prefill_rate: float = 0.0,
        context: int = CONTEXT,
    ) -> SimWorker:
        """Start a worker, or start it anew."""
        self._incarnations += 1
        size = Size(slots, 2 * slots, kv_cells, context, swap_cells=1_000_000)
        worker = SimWorker(self, worker_id, self._incarnations, size, model)
        worker.digest, worker.role = digest, role
        worker.is_source, worker.prefill_rate = is_source, prefill_rate
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
            if core is not self.core:
                return []
            is_inherited = sequence <= self._inherited_through
            return core.on_job(request, sequence, sequence, self.now, is_inherited=is_inherited)

        self.tell(deliver_job)

    def cancel(self, key: RequestKey, attempt_id: str = "") -> None:
        attempt = Attempt(key, attempt_id)
        self.tell(lambda: self.core.cancels.on_cancel(attempt, self.now)[1])
        self._tell_workers_cancel(attempt)

    def restart_scheduler(self) -> None:
        """Kill it, start another: what it had in its hands is lost, jobs come again."""
        self.now += 1.0
        self.core = self._new_core(self.core.term + 1)
        self._inherited_through = self._sequence
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
            partition=self._partition,
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
        is_idle = not any(worker.residents for worker in self.workers.values())
        # What has ended on a worker is gone from the table once the worker has told again.
        is_told = not any(view.unowned for view in self.core.table.workers.values())
        return is_idle and is_told and not (self.network or self.jobs or self.core.jobs)

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
            case actions.Probe():
                self.tell(lambda: self._deliver_probe(action))
            case actions.ReadReplay():
                replayed = assemble(self.log[action.key])
                core = self.core
                self.tell(lambda: self._deliver_replay(core, action, replayed))
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
            case actions.MoveEnded():
                self.moved.add((action.move.why.value, action.move.outcome))

    def publish(self, key: RequestKey, chunk: tokens_pb2.TokenChunk) -> None:
        copy = tokens_pb2.TokenChunk()
        copy.CopyFrom(chunk)
        self.log[key].append(copy)
        self.clients[key].append(copy)

    def read(self, key: RequestKey) -> ReplayedTokens:
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

    def _deliver_probe(self, action: actions.Probe) -> list[actions.Action]:
        self.probed.append(action.worker_id)
        if action.worker_id in self.workers:
            return []
        return self.core.on_probe_unanswered(action.worker_id, action.incarnation, is_gone=True, now=self.now)

    def _deliver_answer(self, core: SchedulerCore, answer: worker_pb2.BatchAccepted) -> list[actions.Action]:
        if core is not self.core:
            return []
        self.in_flight.pop(answer.batch_id, None)
        return core.on_batch_answer(answer, self.now)

    def _deliver_replay(
        self, core: SchedulerCore, action: actions.ReadReplay, replayed: ReplayedTokens
    ) -> list[actions.Action]:
        if core is not self.core:
            return []
        hints = None
        if action.request is not None and self.cached_now is not None:
            hints = self.cached_now(action.request)
        return core.on_replay(action.key, action.read_id, replayed, self.now, hints)

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
        """The table and the jobs agree; a slot has one request."""
        core = self.core
        for worker in core.table.workers.values():
            running = [a for a in worker.assignments.values() if a.is_running]
            for key, assignment in worker.assignments.items():
                job = core.jobs[key]
                assert job.worker_id == worker.worker_id
                assert assignment.is_running == (job.state is not JobState.PARKED)
            slots = [a.slot for a in running]
            assert len(slots) == len(set(slots)), "two requests in one slot"
            assert all(slot in range(worker.slots) for slot in slots)
            assert worker.assigned_cells == sum(a.cells for a in running)
            kept = len(worker.awaited)
            assert worker.free_slots <= max(0, worker.slots - worker.n_running - kept)
            if not worker.unowned:
                assert worker.free_slots == max(0, worker.slots - worker.n_running - kept)
            for key in worker.awaited:
                move = core.jobs[key].move
                assert move is not None
                assert (move.to_id, move.to_incarnation) == (worker.worker_id, worker.incarnation)
        bound = [j for j in core.jobs.values() if j.worker_id and j.state is not JobState.PARKED]
        held = Counter((j.model, j.key.tenant) for j in bound)
        for model, places in core.queue.running.items():
            tenants = {tenant for _, tenant in held} | {key.tenant for key in core.jobs}
            assert {t: n for t in tenants if (n := places.of(t))} == {
                t: n for (m, t), n in held.items() if m == model
            }
        for key, job in core.jobs.items():
            has_place = job.state in (JobState.DISPATCHING, JobState.RUNNING, JobState.PARKED)
            assert (job.worker_id is not None) == has_place or job.state is JobState.READING
            assert job.worker_id is None or key in core.table.workers[job.worker_id].assignments
            if job.move is not None:
                is_there = job.worker_id == (job.move.to_id if job.move.is_following else job.move.from_id)
                assert is_there or (job.is_queued and job.move.is_following)
            assert job.sequence in self.jobs, "held after it was acknowledged"
        moves = [job.move for job in core.jobs.values() if job.move is not None and not job.move.is_split]
        assert core._state.moves._leaving == Counter(move.from_id for move in moves)
        assert core._state.moves._coming == Counter(move.to_id for move in moves)
        queued = {job.key for queue in core.queue.models.values() for job in queue}
        assert queued == {k for k, j in core.jobs.items() if j.is_queued}

    def check_quiet(self) -> None:
        """Nothing is left behind, and every client has had its end and each token once."""
        assert not self.core.jobs
        assert not any(self.core.queue.running.values())
        assert not self.jobs, "jobs not acknowledged"
        for view in self.core.table.workers.values():
            assert not view.assignments
            assert view.free_slots == view.slots
            assert view.assigned_cells == view.unowned_cells == 0
            assert not view.awaited
        for worker in self.workers.values():
            assert not worker.residents
        for key, chunks in self.clients.items():
            replayed = self.read(key)
            assert replayed.outcome, f"{key} never ended"
            assert replayed.token_ids == list(range(len(replayed.token_ids)))
            if replayed.outcome == "length":
                assert len(replayed.token_ids) == self.requests[key].params.max_tokens
            terminals = [c.epoch for c in chunks if outcome_of(c)]
            assert len(terminals) == len(set(terminals)), "two ends in one epoch"
