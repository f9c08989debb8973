"""Builds the scheduler and runs it until it is told to leave."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from inferflux.common import logs, store
from inferflux.common.bus import Bus
from inferflux.common.errors import DeadlineExceeded, InferFluxError, Unavailable
from inferflux.common.lifecycle import Shutdown
from inferflux.common.probe import Probe
from inferflux.common.tasks import cancel_all
from inferflux.common.tracing import OFF, Tracer, open_tracer
from inferflux.v1 import host_pb2, scheduler_pb2

from .core.defects import PlanningHealth
from .core.live_workers import LiveWorkers
from .leader import Leader
from .leadership import RELEASE_LIMIT_S, Leadership
from .metrics import SchedulerMetrics
from .settings import SchedulerSettings
from .workers import WorkerListener

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = logs.get("scheduler")


def steady_clock() -> Callable[[], float]:
    """Seconds since the Unix epoch that never jump: wall time once, monotonic from there."""
    offset = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset


class Scheduler:
    """Leads a partition of the models, or stands by to lead it.

    A standby receives heartbeats, to know which workers to wait for when it leads. It sends nothing.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        bus: Bus,
        redis: Redis,
        probe: Probe,
        metrics: SchedulerMetrics,
        tracer: Tracer,
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._redis = redis
        self._probe = probe
        self._metrics = metrics
        self._tracer = tracer
        self._clock = steady_clock()
        self._live_workers = LiveWorkers()
        self._leader: Leader | None = None
        self._planning = PlanningHealth()
        self._leadership = Leadership(
            bus, holder=settings.id, partition=settings.partition, lease_s=settings.lease_s
        )

    async def run(self, shutdown: Shutdown) -> None:
        """Serve until `shutdown`. Jobs still held go to the next leader, running streams go on.

        Raises:
            InvalidArgument: another partition has some of the models.
        """
        self._report_readiness()
        self._bus.on_reconnect(self._on_reconnect)
        await WorkerListener(self._bus, self, self._metrics).listen()
        keeping = asyncio.create_task(self._leadership.run())
        tasks = {
            asyncio.create_task(self._lead_whenever_possible()),
            asyncio.create_task(self._report_for_ever()),
            asyncio.create_task(shutdown.wait()),
        }
        try:
            done, _ = await asyncio.wait({keeping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._probe.set_ready("scheduler", False, "leaving")
            await cancel_all(tasks)
            self._leadership.end()
            await asyncio.wait({keeping}, timeout=RELEASE_LIMIT_S)
            await cancel_all({keeping})

    # Messages of workers

    def on_heartbeat(self, status: scheduler_pb2.WorkerStatus) -> None:
        models = self._settings.model_names
        if models and not any(card.name in models for card in status.models):
            return
        self._live_workers.on_heartbeat(status, self._clock())
        self._leadership.on_term(status.term)
        if self._leader is not None:
            self._leader.guard.decide("a heartbeat", lambda core, now: core.on_heartbeat(status, now))

    def on_host(self, status: host_pb2.HostStatus) -> None:
        """Raises InvalidArgument when there are more hosts than are kept."""
        self._leadership.on_term(status.term)
        if self._leader is not None:
            self._leader.guard.decide("a host's status", lambda core, now: core.on_host(status, now))

    def on_event(self, event: scheduler_pb2.WorkerEvent) -> None:
        if event.HasField("worker_left") or event.HasField("worker_died"):
            self._live_workers.on_left(event.worker_id, event.incarnation)
        if self._leader is not None:
            self._leader.guard.decide("an event", lambda core, now: core.on_event(event, now))

    async def _on_reconnect(self) -> None:
        if self._leader is not None:
            await self._leader.on_reconnect()

    # From standby to leader and back

    async def _lead_whenever_possible(self) -> None:
        while True:
            term = await self._leadership.until_leading()
            pause_s = 0.0
            try:
                await self._lead(term)
            except (Unavailable, DeadlineExceeded) as error:
                log.warning("cannot lead", term=term, reason=error.reason, error=error.message)
                pause_s = self._settings.lease_s
            self._leadership.leave(pause_s=pause_s)

    async def _lead(self, term: int) -> None:
        """Lead until the lease is lost."""
        leader = Leader(
            self._settings,
            self._bus,
            self._redis,
            self._metrics,
            self._clock,
            self._tracer,
            term=term,
            is_lease_held=lambda: self._leadership.is_held,
            known_workers=self._live_workers.live(self._clock(), self._settings.worker_dead_s),
            health=self._planning,
            not_ready=lambda: self._probe.missing,
        )
        self._leader = leader
        self._metrics.lead(term)
        leading = asyncio.create_task(leader.run())
        lost = asyncio.create_task(self._leadership.until_lost())
        try:
            await asyncio.wait({leading, lost}, return_when=asyncio.FIRST_COMPLETED)
            if leading.done():
                leading.result()
        finally:
            self._leader = None
            await cancel_all({leading, lost})
            self._metrics.stand_by()

    # What is said of it

    async def _report_for_ever(self) -> None:
        while True:
            self._report_readiness()
            await asyncio.sleep(self._settings.tick_interval_s)

    def _report_readiness(self) -> None:
        self._probe.set_ready("scheduler", *self._readiness())
        self._probe.set_ready("planning", *self._planning.condition(self._clock()))

    def _readiness(self) -> tuple[bool, str]:
        if not self._bus.is_connected:
            return False, "not connected to NATS"
        if problem := self._bus.write_problem:
            return False, f"NATS does not write: {problem}"
        if self._leader is not None:
            return self._leader.readiness
        if self._leadership.has_seen_leader:
            return True, f"standby: {self._leadership.holder or 'no scheduler'} leads"
        return False, "waiting for the lease"


async def serve(settings: SchedulerSettings, shutdown: Shutdown) -> None:
    """Run a scheduler from its settings.

    Raises:
        InferFluxError: NATS or the metrics port cannot be used, or its models are another partition's.
    """
    probe = Probe(settings.metrics_listen)
    tracer = OFF
    try:
        tracer = open_tracer(settings, "scheduler")
        bus = await Bus.connect(
            settings.nats_url, name="scheduler", watches_writes=True, tls=settings.client_tls
        )
        try:
            await bus.ensure_streams(settings.stream_limits)
            connected = store.connect(settings.redis_url, tls=settings.client_tls)
            async with contextlib.aclosing(connected) as redis:
                await Scheduler(settings, bus, redis, probe, SchedulerMetrics(), tracer).run(shutdown)
        except InferFluxError as error:
            log.error("leaving", reason=error.reason)
            raise
        finally:
            await bus.close()
    finally:
        await tracer.close()
        probe.close()
