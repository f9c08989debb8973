"""One partition of the models: this process leads it, or stands by to lead it."""

from __future__ import annotations

import asyncio

from inferflux.common.contract.errors import DeadlineExceeded, Unavailable
from inferflux.common.contract.partitions import Partition
from inferflux.common.process import logs
from inferflux.common.process.tasks import cancel_all
from inferflux.scheduler.core.defects import PlanningHealth
from inferflux.scheduler.core.workers.slot_table import LiveWorkers
from inferflux.v1 import host_pb2, scheduler_pb2

from .leader import Leader
from .leadership import RELEASE_LIMIT_S, Leadership
from .process import Process

log = logs.get("scheduler")


class Candidate:
    """Leads a partition whenever it holds its lease.

    A standby receives heartbeats, to know which workers to wait for when it leads. It sends nothing.
    """

    def __init__(self, process: Process, partition: Partition) -> None:
        settings = process.settings
        self._process = process
        self._live_workers = LiveWorkers()
        self.partition = partition
        self.leader: Leader | None = None
        self.planning = PlanningHealth()
        self.leadership = Leadership(
            process.bus, holder=settings.id, partition=partition, lease_s=settings.lease_s
        )

    async def run(self) -> None:
        """Lead whenever that is possible, until cancelled. Jobs still held go to the next leader, running
        streams go on.

        Raises:
            InvalidArgument: models are divided into another number of partitions.
        """
        keeping = asyncio.create_task(self.leadership.run())
        leading = asyncio.create_task(self._lead_whenever_possible())
        try:
            done, _ = await asyncio.wait({keeping, leading}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await cancel_all({leading})
            self.leadership.end()
            await asyncio.wait({keeping}, timeout=RELEASE_LIMIT_S)
            await cancel_all({keeping})

    # Messages of workers

    def on_heartbeat(self, status: scheduler_pb2.WorkerStatus) -> None:
        """Take in the heartbeat of a worker that has a model of this partition."""
        self._live_workers.on_heartbeat(status, self._process.clock())
        self.leadership.on_term(status.term)
        if self.leader is not None:
            self.leader.guard.decide("a heartbeat", lambda core, now: core.on_heartbeat(status, now))

    def on_host(self, status: host_pb2.HostStatus) -> None:
        """Raises InvalidArgument when there are more hosts than are kept."""
        self.leadership.on_term(status.terms.get(self.partition.name, 0))
        if self.leader is not None:
            self.leader.guard.decide("a host's status", lambda core, now: core.on_host(status, now))

    def on_event(self, event: scheduler_pb2.WorkerEvent) -> None:
        if event.HasField("worker_left") or event.HasField("worker_died"):
            self._live_workers.on_left(event.worker_id, event.incarnation)
        if self.leader is not None:
            self.leader.guard.decide("an event", lambda core, now: core.on_event(event, now))

    async def on_reconnect(self) -> None:
        if self.leader is not None:
            await self.leader.on_reconnect()

    # From standby to leader and back

    async def _lead_whenever_possible(self) -> None:
        while True:
            term = await self.leadership.until_leading()
            pause_s = 0.0
            try:
                await self._lead(term)
            except (Unavailable, DeadlineExceeded) as error:
                log.warning("cannot lead", term=term, reason=error.reason, error=error.message)
                pause_s = self._process.settings.lease_s
            self.leadership.leave(pause_s=pause_s)

    async def _lead(self, term: int) -> None:
        """Lead until the lease is lost."""
        now, dead_s = self._process.clock(), self._process.settings.limits.worker_dead_s
        leader = Leader(
            self._process,
            partition=self.partition,
            term=term,
            is_lease_held=lambda: self.leadership.is_held,
            known_workers=self._live_workers.live(now, dead_s),
            health=self.planning,
        )
        self.leader = leader
        self._process.metrics.lead(term)
        leading = asyncio.create_task(leader.run())
        lost = asyncio.create_task(self.leadership.until_lost())
        try:
            await asyncio.wait({leading, lost}, return_when=asyncio.FIRST_COMPLETED)
            if leading.done():
                leading.result()
        finally:
            self.leader = None
            await cancel_all({leading, lost})
            self._process.metrics.stand_by()

    @property
    def readiness(self) -> tuple[bool, str]:
        """Return whether the partition is scheduled, as far as is known here, with what is missing or who
        leads."""
        if self.leader is not None:
            return self.leader.readiness
        if self.leadership.has_seen_leader:
            return True, f"standby: {self.leadership.holder or 'no scheduler'} leads"
        return False, "waiting for the lease"
