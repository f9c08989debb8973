"""The process while it leads."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Collection

from inferflux.common.bus import JobConsumer
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InferFluxError, Unavailable
from inferflux.common.contract.partitions import Partition
from inferflux.common.process import logs
from inferflux.common.process.tasks import Background, cancel_all
from inferflux.scheduler.core.defects import PlanningHealth, unschedulable
from inferflux.scheduler.core.scheduler import SchedulerCore
from inferflux.scheduler.core.types.actions import Action
from inferflux.scheduler.edge.cancel import serve_cancels
from inferflux.scheduler.edge.guard import GuardedCore
from inferflux.scheduler.edge.intake import end_by_name, take_in
from inferflux.scheduler.edge.perform import Performer
from inferflux.scheduler.edge.prefix_hints import PrefixHints
from inferflux.scheduler.edge.reader_notices import serve_readers
from inferflux.scheduler.operator.admin import serve_admin
from inferflux.scheduler.operator.status import serve_status
from inferflux.scheduler.spans import SchedulerSpans
from inferflux.v1 import scheduler_pb2, worker_pb2

from .kept_store import Kept, KeptStore
from .process import TICK_INTERVAL_S, Process
from .shares_exchange import SharesExchange

log = logs.get("scheduler")

# Times that a held job says so before JetStream would deliver it again.
_HOLDS_PER_ACK_WAIT = 3


class Leader:
    """The core, and everything that reaches it and that it does, on one event loop.

    Messages enter the core one by one. A plan is made once per iteration of the event loop: what arrives
    together is dispatched together, and nothing waits longer than that.

    While the lease cannot be renewed, the core still takes messages. Its actions are held. They are performed
    when the lease is renewed, and dropped when another scheduler leads.

    Args:
        partition: of the models, which it leads.
        term: of the lease.
        is_lease_held: whether no other scheduler can lead now.
        known_workers: those that have sent heartbeats; once all of them send one again, dispatching starts.
        health: told when the core raises.
    """

    def __init__(
        self,
        process: Process,
        *,
        partition: Partition,
        term: int,
        is_lease_held: Callable[[], bool],
        known_workers: Collection[str],
        health: PlanningHealth,
    ) -> None:
        settings, bus, metrics, clock = process.settings, process.bus, process.metrics, process.clock
        self._settings = settings
        self._bus = bus
        self._metrics = metrics
        self._clock = clock
        self._partition = partition
        self._term = term
        self._is_lease_held = is_lease_held
        self._is_bus_whole = True
        self._is_able = True
        self._held: list[Action] = []
        self._is_plan_due = False
        self._not_ready = process.not_ready
        self.core = SchedulerCore(
            settings.limits,
            now=clock(),
            # Of batches: what a worker has accepted says in which term it was dispatched.
            name=f"{term}-{uuid.uuid4().hex[:8]}",
            policy=settings.policy,
            tenant_weights=settings.tenant_weights,
            ordinary_share=settings.fairness_ordinary_share,
            fairness=settings.fairness,
            term=term,
            partition=partition,
        )
        self.core.expect(known_workers)
        self._jobs: JobConsumer | None = None
        self.guard = GuardedCore(self.core, self._do, clock, health)
        self._hints = PrefixHints(
            process.redis,
            self.core.holders,
            metrics,
            is_wanted=self._are_hints_wanted,
            limit_s=settings.prefix_lookup_limit_s,
        )
        self._performer = Performer(
            bus,
            self.guard,
            metrics,
            SchedulerSpans(process.tracer),
            look_up=self._hints.look_up,
            has_all=self._has_all_jobs,
            on_failure=lambda error: self.guard.on_defect("an answer", error),
        )

    async def run(self) -> None:
        """Lead until cancelled. Jobs still held go to the next leader, running streams go on.

        Raises:
            Unavailable: another scheduler has taken the queue over, or there is none; or the core raised, and
                leading has to begin anew.
            DeadlineExceeded: JetStream does not answer.
            InvalidArgument: models are divided into another number of partitions.
        """
        async with contextlib.AsyncExitStack() as exits:
            await self.announce()
            exits.push_async_callback(self._performer.close)
            cancels = await serve_cancels(self._bus, self.guard, self._metrics, partition=self._partition)
            exits.push_async_callback(cancels.close)
            readers = await serve_readers(self._bus, self.guard, self._metrics, partition=self._partition)
            exits.push_async_callback(readers.close)
            status = await serve_status(
                self._bus,
                self.core,
                self._clock,
                leader=self._settings.id,
                partition=self._partition,
                term=self._term,
                not_ready=self._not_ready,
            )
            exits.push_async_callback(status.close)
            asked = Background()
            exits.push_async_callback(asked.close)
            admin = await serve_admin(
                self._bus,
                self.core,
                self._do,
                self._clock,
                is_lease_held=self._is_lease_held,
                partition=self._partition,
                guarded=lambda what, work: self.guard.ask(what, lambda _core, _now: work()),
                background=asked,
            )
            exits.push_async_callback(admin.close)
            is_fair = self._settings.policy == "fair"
            stores = [self._store(subjects.killer_images(self._partition), self.core.killer_images)]
            if is_fair:
                stores.append(self._store(subjects.tenant_shares(self._partition), self.core.tenant_service))
            await asyncio.gather(*(store.load() for store in stores))
            for store in stores:
                exits.push_async_callback(store.keep)
            jobs = self._jobs = await self._consume_jobs()
            exits.push_async_callback(jobs.close)
            tasks = {
                asyncio.create_task(
                    take_in(jobs, self._bus, self.guard, self._hints, self._metrics, self._clock)
                ),
                asyncio.create_task(self._hints.keep_up()),
                asyncio.create_task(self._performer.run()),
                asyncio.create_task(self._tick_for_ever()),
                asyncio.create_task(self._until_failed()),
                *(asyncio.create_task(store.keep_for_ever()) for store in stores),
            }
            if is_fair and not self._partition.is_whole:
                exchange = SharesExchange(self._bus, self._partition, self._term, self.guard, self._metrics)
                tasks.add(asyncio.create_task(exchange.run()))
            exits.push_async_callback(cancel_all, tasks)
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await self._leave(done)

    def _store(self, key: str, kept: Kept) -> KeptStore:
        return KeptStore(self._bus.key_value(subjects.SCHEDULERS_BUCKET), key, kept)

    async def _leave(self, done: Collection[asyncio.Task[None]]) -> None:
        """Raise what ended one of the tasks; requests that are to blame for a defect end first."""
        expected: InferFluxError | None = None
        for task in done:
            match task.exception():
                case None:
                    pass
                case InferFluxError() as error:
                    expected = error
                case error:
                    self.guard.on_defect("a task", error)
        for culprit, error in self.guard.culprits:
            if self._is_lease_held():
                why = unschedulable(error)
                await end_by_name(culprit.request, culprit.job, self._bus, why, epoch=culprit.epoch)
                about = logs.of_request(culprit.request.request_id, culprit.request.tenant)
                log.error("a request ends: it made the core raise", **about)
        for what, error in self.guard.defects:  # only now: a traceback takes time to write
            log.error("the scheduler's core raised", what=what, exc_info=error)
        if self.guard.failed.is_set():
            raise Unavailable("the core raised", reason="SCHEDULER_FAILED")
        if expected is not None:
            raise expected

    async def _until_failed(self) -> None:
        await self.guard.failed.wait()

    @property
    def readiness(self) -> tuple[bool, str]:
        """Return whether requests are scheduled, and what is missing or who leads."""
        if not self._is_lease_held():
            return False, "the lease could not be renewed"
        if not self.core.is_settled:
            return False, "listening for workers"
        return True, f"leads in term {self._term}"

    def _are_hints_wanted(self, request: scheduler_pb2.InferenceRequest) -> bool:
        """Return whether there is a choice between workers, or an estimate of what is left to compute."""
        has_estimate = self.core.policy in ("sjf", "fair") or request.deadline_unix_ms > 0
        return has_estimate or len(self.core.holders(request.model)) > 1

    async def on_reconnect(self) -> None:
        """The bus is whole again, its streams included."""
        self._is_bus_whole, self._is_able = True, False
        self.guard.decide("a reconnect", self._on_reconnect)
        await self.announce()

    # What is done

    async def announce(self) -> None:
        """Publish to the workers that this scheduler leads; they answer with heartbeats."""
        notice = worker_pb2.LeaderNotice(partition=self._partition.name, term=self._term)
        await self._bus.publish(subjects.SCHEDULER_LEADER, notice.SerializeToString())

    async def _consume_jobs(self) -> JobConsumer:
        return await self._bus.consume_jobs(
            max_outstanding=self._settings.queue_limit,
            ack_wait_s=_HOLDS_PER_ACK_WAIT * self.core.limits.hold_interval_s,
            partition=self._partition,
        )

    async def _has_all_jobs(self) -> bool:
        """Return whether the core has every job of the work queue."""
        jobs = self._jobs
        return jobs is not None and await jobs.has_all() and jobs.n_held <= len(self.core.jobs)

    def _do(self, todo: list[Action]) -> None:
        self._held += todo
        self._perform_held()
        if not self._is_plan_due and self.core.must_plan:
            self._is_plan_due = True
            asyncio.get_running_loop().call_soon(self._plan)

    def _plan(self) -> None:
        self._is_plan_due = False
        if self._is_lease_held():
            self.guard.attempt("planning", self._make_plan)

    def _make_plan(self, now: float) -> None:
        self._held += self.core.plan(now)
        self._perform_held()

    def _perform_held(self) -> None:
        if self._held and self._is_lease_held():
            todo, self._held = self._held, []
            self._performer.perform(todo)

    async def _tick_for_ever(self) -> None:
        while True:
            self._is_bus_whole &= self._bus.is_connected
            self.guard.decide("the passing of time", self._on_tick)
            await asyncio.sleep(TICK_INTERVAL_S)

    def _on_reconnect(self, core: SchedulerCore, now: float) -> list[Action]:
        core.on_connection(False, now)
        self._follow_ability(now)
        return []

    def _on_tick(self, core: SchedulerCore, now: float) -> list[Action]:
        self._follow_ability(now)
        return core.on_tick(now)

    def _follow_ability(self, now: float) -> None:
        """Have the core pause while NATS is away, or the lease cannot be renewed."""
        is_able = self._is_bus_whole and self._is_lease_held()
        if is_able == self._is_able:
            return
        self._is_able = is_able
        self.core.on_connection(is_able, now)
        if is_able:
            log.info("schedules again", term=self._term, held=len(self._held))
        else:
            log.warning("pauses", is_connected=self._bus.is_connected, is_lease_held=self._is_lease_held())
