"""Builds the scheduler and runs it until it is told to leave."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from inferflux.common.bus import Bus
from inferflux.common.contract.errors import InferFluxError
from inferflux.common.contract.partitions import divide, indexes_of
from inferflux.common.process import logs
from inferflux.common.process.lifecycle import Shutdown
from inferflux.common.process.probe import DRAINING, Probe
from inferflux.common.process.tasks import cancel_all
from inferflux.common.redis import store
from inferflux.common.tracing import OFF, Tracer, open_tracer
from inferflux.v1 import host_pb2, scheduler_pb2

from .core.workers.pools import PoolWatch
from .edge.workers import WorkerListener
from .leadership.candidate import Candidate
from .leadership.membership import Membership
from .leadership.process import TICK_INTERVAL_S, Process
from .metrics import SchedulerMetrics
from .settings import SchedulerSettings

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = logs.get("scheduler")

_GAUGE_INTERVAL_S = 1.0


def steady_clock() -> Callable[[], float]:
    """Seconds since the Unix epoch that never jump: wall time once, monotonic from there."""
    offset = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset


class Scheduler:
    """Leads partitions of the models, or stands by to lead them."""

    def __init__(
        self,
        settings: SchedulerSettings,
        bus: Bus,
        redis: Redis,
        probe: Probe,
        metrics: SchedulerMetrics,
        tracer: Tracer,
    ) -> None:
        self._bus = bus
        self._probe = probe
        self._metrics = metrics
        self._clock = steady_clock()
        process = Process(settings, bus, redis, metrics, tracer, self._clock, lambda: probe.missing)
        self._candidates = [Candidate(process, partition) for partition in divide(settings.partitions)]
        limits = settings.limits
        self._pools = PoolWatch(
            prefill=limits.prefill_pool_size, decode=limits.decode_pool_size, dead_s=limits.worker_dead_s
        )
        self._membership = (
            Membership(bus, settings.id, self._candidates, metrics, lease_s=settings.lease_s)
            if settings.partitions > 1
            else None
        )

    async def run(self, shutdown: Shutdown) -> None:
        """Serve until `shutdown`. Jobs still held go to the next leader, running streams go on.

        Raises:
            InvalidArgument: models are divided into another number of partitions.
        """
        self._report_readiness()
        self._bus.on_reconnect(self._on_reconnect)
        await WorkerListener(self._bus, self, self._metrics).listen()
        tasks = {
            *(asyncio.create_task(candidate.run()) for candidate in self._candidates),
            asyncio.create_task(self._report_for_ever()),
            asyncio.create_task(shutdown.wait()),
        }
        if self._membership is not None:
            tasks.add(asyncio.create_task(self._membership.run()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._probe.set_ready("scheduler", False, "leaving", reason=DRAINING)
            await cancel_all(tasks)

    # Messages of workers

    def on_heartbeat(self, status: scheduler_pb2.WorkerStatus) -> None:
        self._pools.on_heartbeat(status, self._clock())
        # Of thousands of workers each second: no candidate is asked for what is not its own.
        for index in indexes_of((card.name for card in status.models), len(self._candidates)):
            self._candidates[index].on_heartbeat(status)

    def on_host(self, status: host_pb2.HostStatus) -> None:
        """Raises InvalidArgument when there are more hosts than are kept."""
        for candidate in self._candidates:
            candidate.on_host(status)

    def on_event(self, event: scheduler_pb2.WorkerEvent) -> None:
        if event.HasField("worker_left") or event.HasField("worker_died"):
            self._pools.on_left(event.worker_id, event.incarnation)
        for candidate in self._candidates:
            candidate.on_event(event)

    async def _on_reconnect(self) -> None:
        if self._membership is not None:
            self._membership.on_reconnect()
        for candidate in self._candidates:
            await candidate.on_reconnect()

    # What is said of it

    async def _report_for_ever(self) -> None:
        gauges_due_s = 0.0
        while True:
            self._report_readiness()
            if (now := self._clock()) >= gauges_due_s:
                gauges_due_s = now + _GAUGE_INTERVAL_S
                cores = [each.leader.core for each in self._candidates if each.leader is not None]
                self._metrics.observe(cores, now)
            await asyncio.sleep(TICK_INTERVAL_S)

    def _report_readiness(self) -> None:
        self._probe.set_ready("scheduler", *self._readiness())
        now = self._clock()
        failed = [why for each in self._candidates for ok, why in [each.planning.condition(now)] if not ok]
        self._probe.set_ready("planning", not failed, next(iter(failed), ""))
        # Any worker serves any request: a scheduler without one of a role is ready.
        small = self._pools.small(now)
        self._probe.set_warning(
            "pools",
            "; ".join(pool.not_ready for pool in small),
            reason="; ".join(pool.reason for pool in small),
        )

    def _readiness(self) -> tuple[bool, str]:
        if not self._bus.is_connected:
            return False, "not connected to NATS"
        if problem := self._bus.write_problem:
            return False, f"NATS does not write: {problem}"
        if self._membership is None:
            return self._candidates[0].readiness
        for candidate in self._candidates:
            is_ready, why = candidate.readiness
            if not is_ready:
                return False, f"partition {candidate.partition.name}: {why}"
        led = [each.partition.name for each in self._candidates if each.leader is not None]
        return True, f"leads {', '.join(led)}" if led else "standby of every partition"


async def serve(settings: SchedulerSettings, shutdown: Shutdown) -> None:
    """Run a scheduler from its settings.

    Raises:
        InferFluxError: NATS or the metrics port cannot be used, or models are divided otherwise.
    """
    probe = Probe(settings.metrics_listen, role="scheduler")
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
