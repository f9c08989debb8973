"""Builds the scheduler and runs it until it is told to leave."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable

from inferflux.common import logs, subjects
from inferflux.common.bus import Bus, Job
from inferflux.common.errors import InferFluxError, InvalidArgument, to_failed
from inferflux.common.lifecycle import Shutdown
from inferflux.common.probe import Probe
from inferflux.common.tracing import OFF, Tracer, open_tracer
from inferflux.v1 import scheduler_pb2, tokens_pb2, worker_pb2

from .actions import Action
from .cancel import serve_cancels
from .core import Core
from .emitted import Emitted
from .intake import take_in
from .jobs import RequestKey
from .metrics import SchedulerMetrics
from .perform import Performer
from .settings import SchedulerSettings
from .spans import SchedulerSpans
from .status import serve_status
from .workers import WorkerListener

log = logs.get("scheduler")

_GAUGE_INTERVAL_S = 1.0


def steady_clock() -> Callable[[], float]:
    """Seconds since the Unix epoch that never jump: wall time once, monotonic from there."""
    offset = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset


class Scheduler:
    """The core, and everything it hears and does, on one event loop.

    What happens goes into the core one by one; its plan is made once per turn of the loop, so that what
    arrives together travels together, and nothing waits longer than that.
    """

    def __init__(
        self, settings: SchedulerSettings, bus: Bus, probe: Probe, metrics: SchedulerMetrics, tracer: Tracer
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._probe = probe
        self._metrics = metrics
        self._clock = steady_clock()
        self._is_plan_due = False
        self.core = Core(
            settings.limits,
            now=self._clock(),
            name=uuid.uuid4().hex[:8],
            policy=settings.policy,
            aging_s=settings.aging_s,
        )
        self._performer = Performer(
            bus, self, metrics, SchedulerSpans(tracer), dispatch_timeout_s=settings.dispatch_timeout_s
        )

    async def run(self, shutdown: Shutdown) -> None:
        """Serve until `shutdown`. Jobs still held go to the next scheduler, running streams go on.

        Raises:
            Unavailable: another scheduler has taken the queue over.
        """
        self._probe.set_ready("scheduler", False, "listening for workers")
        self._bus.on_reconnect(self._on_reconnect)
        await WorkerListener(self._bus, self, self._metrics).listen()
        await serve_cancels(self._bus, self, self._metrics)
        await serve_status(self._bus, self.core, self._clock)
        jobs = await self._bus.consume_jobs(
            max_outstanding=self._settings.queue_limit, ack_wait_s=self._settings.ack_wait_s
        )
        leaving = asyncio.create_task(shutdown.wait())
        tasks = {
            asyncio.create_task(take_in(jobs, self, self._metrics)),
            asyncio.create_task(self._performer.run()),
            asyncio.create_task(self._tick_for_ever()),
            leaving,
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {leaving}:
                task.result()
        finally:
            self._probe.set_ready("scheduler", False, "leaving")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._performer.close()
            await jobs.close()

    # What is heard

    def on_job(self, request: scheduler_pb2.InferenceRequest, job: Job) -> None:
        self._do(self.core.on_job(request, job, job.sequence, self._clock()))

    async def on_bad_job(self, request: scheduler_pb2.InferenceRequest, error: InvalidArgument) -> None:
        """The client waits for an answer all the same."""
        chunk = tokens_pb2.TokenChunk(request_id=request.request_id, epoch=1, failed=to_failed(error))
        await self._bus.publish(
            subjects.tokens(request.tenant, request.request_id), chunk.SerializeToString()
        )

    def on_heartbeat(self, status: scheduler_pb2.WorkerStatus) -> None:
        self._do(self.core.on_heartbeat(status, self._clock()))

    def on_event(self, event: scheduler_pb2.WorkerEvent) -> None:
        self._do(self.core.on_event(event, self._clock()))

    def on_cancel(self, key: RequestKey) -> bool:
        was_found, todo = self.core.on_cancel(key, self._clock())
        self._do(todo)
        return was_found

    def on_batch_answer(self, answer: worker_pb2.BatchAccepted) -> None:
        self._do(self.core.on_batch_answer(answer, self._clock()))

    def on_batch_unanswered(self, batch_id: str, *, is_delivered: bool) -> None:
        self._do(self.core.on_batch_unanswered(batch_id, is_delivered=is_delivered, now=self._clock()))

    def on_replay(self, key: RequestKey, read_id: int, emitted: Emitted) -> None:
        self._do(self.core.on_replay(key, read_id, emitted, self._clock()))

    # What is done

    def _do(self, todo: list[Action]) -> None:
        if todo:
            self._performer.perform(todo)
        if not self._is_plan_due and self.core.must_plan:
            self._is_plan_due = True
            asyncio.get_running_loop().call_soon(self._plan)

    def _plan(self) -> None:
        self._is_plan_due = False
        self._performer.perform(self.core.plan(self._clock()))

    async def _tick_for_ever(self) -> None:
        was_connected = True
        gauges_due_s = 0.0
        while True:
            now = self._clock()
            if was_connected and not self._bus.is_connected:
                self.core.on_connection(False, now)
            was_connected = self._bus.is_connected
            self._do(self.core.on_tick(now))
            if now >= gauges_due_s:
                gauges_due_s = now + _GAUGE_INTERVAL_S
                self._metrics.observe(self.core, now)
            self._report_readiness()
            await asyncio.sleep(self._settings.tick_interval_s)

    def _report_readiness(self) -> None:
        if not self._bus.is_connected:
            self._probe.set_ready("scheduler", False, "not connected to NATS")
        elif not self.core.is_settled:
            self._probe.set_ready("scheduler", False, "listening for workers")
        else:
            self._probe.set_ready("scheduler", True)

    async def _on_reconnect(self) -> None:
        now = self._clock()
        self.core.on_connection(False, now)
        self.core.on_connection(True, now)
        self._do([])


async def serve(settings: SchedulerSettings, shutdown: Shutdown) -> None:
    """Run a scheduler from its settings.

    Raises:
        InferFluxError: NATS or the metrics port cannot be used, or another scheduler took over.
    """
    probe = Probe(settings.metrics_listen)
    tracer = OFF
    try:
        tracer = open_tracer(settings, "scheduler")
        bus = await Bus.connect(settings.nats_url, name="scheduler")
        try:
            await bus.ensure_streams(settings.stream_limits)
            await Scheduler(settings, bus, probe, SchedulerMetrics(), tracer).run(shutdown)
        except InferFluxError as error:
            log.error("leaving", reason=error.reason)
            raise
        finally:
            await bus.close()
    finally:
        await tracer.close()
        probe.close()
