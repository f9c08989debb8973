"""A scheduler that leads a partition: the real core, and around it what `leadership/leader.py` does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from benchmarks.sim.world import to_request
from inferflux.common.contract.partitions import Partition
from inferflux.scheduler.core.lease.lease import Lease
from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.scheduler.core.order.tenant_service import ServedElsewhere
from inferflux.scheduler.core.scheduler import SchedulerCore
from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.actions import Action
from inferflux.scheduler.core.types.limits import Limits
from inferflux.scheduler.core.types.replayed import ReplayedTokens
from inferflux.v1 import scheduler_pb2, worker_pb2

from .demand import weights
from .history import Ask, Lead

if TYPE_CHECKING:
    from .world import FleetWorld

_TICK_S = 0.1
_SHARES_S = 1.0
# Until the work queue gives jobs out to a new consumer, and between two that were there before: measured in
# docs/fleet.md as 3.5 to 4.2 s for 10,000.
_CONSUME_S = 0.02
_JOB_S = 0.00025
# Reading what a stream has had; this many are read at a time.
_READ_S = 0.005
_READERS = 32
# Ends of a scheduler that has no time for anything.
LOST = ("killed", "zone lost")
# Of a batch to a worker whose host does not answer.
ANSWER_S = 2.0


class Leader:
    """Leads until it is told to stop. Nothing that it does comes later than that."""

    def __init__(self, world: FleetWorld, scheduler: str, partition: Partition, lease: Lease) -> None:
        fleet = world.fleet
        limits = Limits()
        self.core = SchedulerCore(
            limits,
            now=world.now,
            name=f"{lease.term}-{scheduler}",
            policy=fleet.policy,
            tenant_weights=weights(fleet),
            fairness=FairnessSettings(enable_preemption=fleet.is_preempting),
            term=lease.term,
            partition=partition,
        )
        self.core.expect(world.known_workers[partition].live(world.now, limits.worker_dead_s))
        self.partition = partition
        self.scheduler = scheduler
        self.lead = Lead(partition, lease.term, scheduler, world.now)
        self._world = world
        self._lease = lease
        self._is_over = False
        self._is_plan_due = False
        self._is_able = True
        self._held: list[Action] = []
        self._elsewhere = ServedElsewhere()
        # Jobs that the work queue has not given out yet.
        self._coming: deque[Ask] = deque()
        # Those up to here may have run under an earlier leader.
        self._inherited_through = 0
        self._is_consuming = False
        self._read_s = 0.0

    def begin(self) -> None:
        world = self._world
        world.announce(self.partition, self.lead.term)
        if self._world.fleet.policy == "fair":
            value, _ = world.bucket.get(self._shares_key)
            if value is not None:
                self.core.tenant_service.restore(value)
            world.events.after(_SHARES_S, self._keep_shares)
            world.events.after(0.0, self._publish_shares)
        world.events.after(_CONSUME_S, self._consume)
        self._tick()

    def end(self, why: str) -> None:
        """Stop. Jobs that it holds go to the next leader, and what it served, unless it was lost."""
        if why not in LOST and self._world.fleet.policy == "fair":
            self._write_shares()
        self._is_over = True
        self.lead.to_s, self.lead.end = self._world.now, why

    # What it is told

    def on_job(self, ask: Ask) -> None:
        """The work queue has a new job."""
        if self._is_consuming and not self._coming:
            self._take(ask)
        elif self._is_consuming:
            self._coming.append(ask)

    def on_heartbeat(self, status: scheduler_pb2.WorkerStatus) -> None:
        self._decide("heartbeat", lambda core, now: core.on_heartbeat(status, now))

    def on_event(self, event: scheduler_pb2.WorkerEvent) -> None:
        self._decide("event", lambda core, now: core.on_event(event, now))

    def on_answer(self, answer: worker_pb2.BatchAccepted) -> None:
        self._decide("answer", lambda core, now: core.on_batch_answer(answer, now))

    def on_no_answer(self, batch_id: str, *, is_delivered: bool) -> None:
        """A batch was lost on its way, or there is no such worker."""
        self._decide(
            "answer",
            lambda core, now: core.on_batch_unanswered(
                batch_id, is_delivered=is_delivered, is_gone=not is_delivered, now=now
            ),
        )

    def on_no_probe(self, worker_id: str, incarnation: str, *, is_gone: bool) -> None:
        self._decide(
            "answer",
            lambda core, now: core.on_probe_unanswered(worker_id, incarnation, is_gone=is_gone, now=now),
        )

    def on_served(self, partition: Partition, term: int, served: dict[str, float]) -> None:
        """Another leader publishes what it has served."""

        def count(core: SchedulerCore, _now: float) -> list[Action]:
            if new := self._elsewhere.take(partition.name, term, served):
                core.tenant_service.charge_elsewhere(new)
            return []

        self._decide("shares", count)

    # The work queue

    def _consume(self) -> None:
        self._is_consuming = True
        self._coming.extend(self._world.queues[self.partition].all())
        self._inherited_through = max((ask.sequence for ask in self._coming), default=0)
        self._feed()

    def _feed(self) -> None:
        if self._is_over:
            return
        if not self._coming:
            self.lead.known_s = self._world.now
            return
        self._take(self._coming.popleft())
        self._world.events.after(_JOB_S, self._feed)

    def _take(self, ask: Ask) -> None:
        request = to_request(ask)
        is_inherited = ask.sequence <= self._inherited_through
        self._decide(
            "job", lambda core, now: core.on_job(request, ask, ask.sequence, now, is_inherited=is_inherited)
        )

    # What it decides

    def _decide(self, what: str, decide: Callable[[SchedulerCore, float], list[Action]]) -> None:
        if self._is_over:
            return
        now = self._world.now
        self._held += self._world.meter.time(self.scheduler, what, lambda: decide(self.core, now))
        self._perform_held()
        if not self._is_plan_due and self.core.must_plan:
            self._is_plan_due = True
            self._world.events.after(0.0, self._plan)

    def _plan(self) -> None:
        self._is_plan_due = False
        if not self._is_over and self._lease.is_held(self._world.now):
            self._decide("plan", lambda core, now: core.plan(now))

    def _tick(self) -> None:
        if self._is_over:
            return
        is_able = self._lease.is_held(self._world.now)
        if is_able != self._is_able:
            self._is_able = is_able
            self.core.on_connection(is_able, self._world.now)
        self._decide("tick", lambda core, now: core.on_tick(now))
        self._world.events.after(_TICK_S, self._tick)

    def _perform_held(self) -> None:
        if self._held and self._lease.is_held(self._world.now):
            todo, self._held = self._held, []
            self._perform(todo)

    def _perform(self, todo: Iterable[Action]) -> None:
        world = self._world
        for action in todo:
            match action:
                case actions.Dispatch():
                    self.lead.sent_s = self.lead.sent_s or world.now
                    world.send(world.deliver, self, action.worker_id, action.batch, world.now)
                case actions.Ack(handle=Ask() as ask):
                    world.send(world.acknowledge, ask)
                case actions.PublishChunk(key=key, chunk=chunk):
                    world.send(world.on_chunk, key, chunk)
                case actions.ReadReplay():
                    self._read(action)
                case actions.SendCommand():
                    world.send(world.command, action.worker_id, action.command)
                case actions.Probe():
                    world.send(world.probe, self, action.worker_id, action.incarnation)
                case actions.CountRetry(cause=cause):
                    world.history.counts[f"again: {cause}"] += 1
                case actions.CountRefusal(reason=reason):
                    world.history.counts[f"refused: {reason}"] += 1
                case actions.Preempted():
                    world.history.counts["preempted"] += 1

    def _read(self, action: actions.ReadReplay) -> None:
        self._read_s = max(self._world.now, self._read_s) + _READ_S / _READERS
        self._world.events.at(self._read_s + _READ_S, self._on_read, action)

    def _on_read(self, action: actions.ReadReplay) -> None:
        ask = self._world.asks[action.key]
        has = ReplayedTokens(list(range(ask.generated)), epoch=ask.epoch, outcome=ask.outcome)
        self._decide("replay", lambda core, now: core.on_replay(action.key, action.read_id, has, now))

    # What tenants were served

    @property
    def _shares_key(self) -> str:
        return f"shares.{self.partition.name}"

    def _keep_shares(self) -> None:
        if self._is_over:
            return
        self._write_shares()
        self._world.events.after(_SHARES_S, self._keep_shares)

    def _write_shares(self) -> None:
        bucket = self._world.bucket
        _, revision = bucket.get(self._shares_key)
        value = self._world.meter.time(self.scheduler, "shares", self.core.tenant_service.encode)
        bucket.write(self._shares_key, value, revision)

    def _publish_shares(self) -> None:
        if self._is_over:
            return
        served = self._world.meter.time(self.scheduler, "shares", self.core.tenant_service.most_served)
        if self._world.fleet.are_shares_exchanged:
            self._world.send(self._world.tell_served, self.partition, self.lead.term, served)
        self._world.events.after(_SHARES_S, self._publish_shares)
