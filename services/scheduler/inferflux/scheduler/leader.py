"""What the process does while it leads."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Collection, Iterable

from inferflux.common import logs, subjects
from inferflux.common.bus import Bus, Job, JobConsumer
from inferflux.common.errors import InvalidArgument, to_failed
from inferflux.common.tracing import Tracer
from inferflux.v1 import scheduler_pb2, tokens_pb2, worker_pb2

from .actions import Action
from .admin import serve_admin
from .background import cancel_all
from .cancel import serve_cancels
from .core import Core
from .emitted import Emitted
from .intake import take_in
from .jobs import Attempt, RequestKey
from .jobs import Job as QueuedJob
from .metrics import SchedulerMetrics
from .perform import Performer
from .reader_notices import serve_readers
from .settings import SchedulerSettings
from .spans import SchedulerSpans
from .status import serve_status

log = logs.get("scheduler")

_GAUGE_INTERVAL_S = 1.0


class Leader:
    """The core, and everything it hears and does, on one event loop.

    What happens goes into the core one by one; its plan is made once per turn of the loop, so that what
    arrives together travels together, and nothing waits longer than that.

    While the lease cannot be renewed, the core goes on listening, and what it wants done is held: it is done
    when the lease is renewed, and forgotten when somebody else leads.

    Args:
        term: of the lease.
        is_lease_held: whether nobody else can lead now.
        known_workers: those that were heard before; once all of them are heard again, dispatching starts.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        bus: Bus,
        metrics: SchedulerMetrics,
        clock: Callable[[], float],
        tracer: Tracer,
        *,
        term: int,
        is_lease_held: Callable[[], bool],
        known_workers: Collection[str],
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._metrics = metrics
        self._clock = clock
        self._term = term
        self._is_lease_held = is_lease_held
        self._is_bus_whole = True
        self._is_able = True
        self._held: list[Action] = []
        self._is_plan_due = False
        self.core = Core(
            settings.limits,
            now=clock(),
            name=uuid.uuid4().hex[:8],
            policy=settings.policy,
            aging_s=settings.aging_s,
            tenant_weights=settings.tenant_weights,
            fairness=settings.fairness,
            term=term,
        )
        self.core.expect(known_workers)
        self._performer = Performer(
            bus, self, metrics, SchedulerSpans(tracer), dispatch_timeout_s=settings.dispatch_timeout_s
        )

    async def run(self) -> None:
        """Lead until cancelled. Jobs still held go to the next leader, running streams go on.

        Raises:
            Unavailable: another scheduler has taken the queue over, or there is none.
            DeadlineExceeded: JetStream does not answer.
            InvalidArgument: another partition has some of the models.
        """
        async with contextlib.AsyncExitStack() as exits:
            await self.announce()
            exits.push_async_callback(self._performer.close)
            is_alone = not self._settings.model_names
            cancels = await serve_cancels(self._bus, self, self._metrics, is_alone=is_alone)
            exits.push_async_callback(cancels.close)
            readers = await serve_readers(self._bus, self, self._metrics, is_alone=is_alone)
            exits.push_async_callback(readers.close)
            status = await serve_status(
                self._bus, self.core, self._clock, leader=self._settings.id, term=self._term
            )
            exits.push_async_callback(status.close)
            admin = await serve_admin(
                self._bus,
                self.core,
                self._do,
                self._clock,
                is_lease_held=self._is_lease_held,
                is_alone=is_alone,
            )
            exits.push_async_callback(admin.close)
            jobs = await self._consume_jobs()
            exits.push_async_callback(jobs.close)
            tasks = {
                asyncio.create_task(take_in(jobs, self, self._metrics)),
                asyncio.create_task(self._performer.run()),
                asyncio.create_task(self._tick_for_ever()),
            }
            exits.push_async_callback(cancel_all, tasks)
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    @property
    def readiness(self) -> tuple[bool, str]:
        """Whether requests are scheduled, and what is missing or who leads."""
        if not self._is_lease_held():
            return False, "the lease could not be renewed"
        if not self.core.is_settled:
            return False, "listening for workers"
        return True, f"leads in term {self._term}"

    # What is heard

    def on_job(self, request: scheduler_pb2.InferenceRequest, job: Job) -> None:
        self._do(self.core.on_job(request, job, job.sequence, self._clock()))

    async def on_bad_job(self, request: scheduler_pb2.InferenceRequest, error: InvalidArgument) -> None:
        """The client waits for an answer all the same."""
        chunk = tokens_pb2.TokenChunk(
            request_id=request.request_id, epoch=1, failed=to_failed(error), attempt_id=request.attempt_id
        )
        await self._bus.publish(
            subjects.tokens(request.tenant, request.request_id), chunk.SerializeToString()
        )

    def on_heartbeat(self, status: scheduler_pb2.WorkerStatus) -> None:
        self._do(self.core.on_heartbeat(status, self._clock()))

    def on_event(self, event: scheduler_pb2.WorkerEvent) -> None:
        self._do(self.core.on_event(event, self._clock()))

    def on_cancel(self, attempt: Attempt) -> bool:
        was_found, todo = self.core.on_cancel(attempt, self._clock())
        self._do(todo)
        return was_found

    def on_readers(self, gateway_id: str, read: Iterable[Attempt]) -> None:
        self.core.on_readers(gateway_id, read, self._clock())

    def on_reader_joined(self, gateway_id: str, attempt: Attempt) -> QueuedJob | None:
        return self.core.on_reader_joined(gateway_id, attempt, self._clock())

    def on_reader_left(self, gateway_id: str, attempt: Attempt, *, is_handed_over: bool) -> tuple[bool, bool]:
        now = self._clock()
        return self.core.on_reader_left(gateway_id, attempt, now, is_handed_over=is_handed_over)

    def on_batch_answer(self, answer: worker_pb2.BatchAccepted) -> None:
        self._do(self.core.on_batch_answer(answer, self._clock()))

    def on_batch_unanswered(self, batch_id: str, *, is_delivered: bool, is_gone: bool = False) -> None:
        now = self._clock()
        self._do(self.core.on_batch_unanswered(batch_id, is_delivered=is_delivered, is_gone=is_gone, now=now))

    def on_replay(self, key: RequestKey, read_id: int, emitted: Emitted) -> None:
        self._do(self.core.on_replay(key, read_id, emitted, self._clock()))

    async def on_reconnect(self) -> None:
        """The bus is whole again, its streams included."""
        self._is_bus_whole, self._is_able = True, False
        now = self._clock()
        self.core.on_connection(False, now)
        self._follow_ability(now)
        self._do([])
        await self.announce()

    # What is done

    async def announce(self) -> None:
        """Tell the workers who leads; they answer with heartbeats."""
        notice = worker_pb2.LeaderNotice(
            partition=self._settings.partition, term=self._term, models=self._settings.model_names
        )
        await self._bus.publish(subjects.SCHEDULER_LEADER, notice.SerializeToString())

    async def _consume_jobs(self) -> JobConsumer:
        return await self._bus.consume_jobs(
            max_outstanding=self._settings.queue_limit,
            ack_wait_s=self._settings.ack_wait_s,
            partition=self._settings.partition,
            models=self._settings.model_names,
        )

    def _do(self, todo: list[Action]) -> None:
        self._held += todo
        self._perform_held()
        if not self._is_plan_due and self.core.must_plan:
            self._is_plan_due = True
            asyncio.get_running_loop().call_soon(self._plan)

    def _plan(self) -> None:
        self._is_plan_due = False
        if self._is_lease_held():
            self._held += self.core.plan(self._clock())
            self._perform_held()

    def _perform_held(self) -> None:
        if self._held and self._is_lease_held():
            todo, self._held = self._held, []
            self._performer.perform(todo)

    async def _tick_for_ever(self) -> None:
        gauges_due_s = 0.0
        while True:
            now = self._clock()
            self._is_bus_whole &= self._bus.is_connected
            self._follow_ability(now)
            self._do(self.core.on_tick(now))
            if now >= gauges_due_s:
                gauges_due_s = now + _GAUGE_INTERVAL_S
                self._metrics.observe(self.core, now)
            await asyncio.sleep(self._settings.tick_interval_s)

    def _follow_ability(self, now: float) -> None:
        """Have the core pause while it cannot be heard, or may not speak."""
        is_able = self._is_bus_whole and self._is_lease_held()
        if is_able == self._is_able:
            return
        self._is_able = is_able
        self.core.on_connection(is_able, now)
        if is_able:
            log.info("schedules again", term=self._term, held=len(self._held))
        else:
            log.warning("pauses", is_connected=self._bus.is_connected, is_lease_held=self._is_lease_held())
