"""Membership over NATS: the schedulers that live, and the one that should lead each partition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from inferflux.common.bus import Bus, Message
from inferflux.common.contract import checks, subjects
from inferflux.common.contract.errors import InferFluxError, InvalidArgument
from inferflux.common.process import logs
from inferflux.scheduler.core.lease.ownership import Handover, Members
from inferflux.scheduler.metrics import SchedulerMetrics
from inferflux.v1 import scheduler_pb2

from .candidate import Candidate

log = logs.get("scheduler.membership")

# As often as a lease is renewed.
_PER_LEASE = 3


class Membership:
    """Publishes that this scheduler lives, receives who else does, and has candidates lead or give back.

    Args:
        name: this scheduler's.
        lease_s: how long a lease stands that is not renewed.
    """

    def __init__(
        self,
        bus: Bus,
        name: str,
        candidates: Iterable[Candidate],
        metrics: SchedulerMetrics,
        *,
        lease_s: float,
    ) -> None:
        self._bus = bus
        self._name = name
        self._candidates = tuple(candidates)
        self._metrics = metrics
        self._interval_s = lease_s / _PER_LEASE
        self._members = Members(name, self._interval_s, time.monotonic())
        self._handover = Handover(lease_s)

    async def run(self) -> None:
        """Until cancelled; the others are told then."""
        served = await self._bus.serve(subjects.SCHEDULER_ALIVE, self._on_alive)
        try:
            while True:
                await self._tell(is_leaving=False)
                self._decide(time.monotonic())
                await asyncio.sleep(self._interval_s)
        finally:
            await served.close()
            await self._tell(is_leaving=True)

    def on_reconnect(self) -> None:
        """Take in that nothing was received for a while."""
        self._members.on_reconnect(time.monotonic())

    async def _tell(self, *, is_leaving: bool) -> None:
        alive = scheduler_pb2.SchedulerAlive(scheduler_id=self._name, is_leaving=is_leaving)
        try:
            await self._bus.publish(subjects.SCHEDULER_ALIVE, alive.SerializeToString())
        except InferFluxError as error:
            log.debug("could not publish that it lives", reason=error.reason)

    async def _on_alive(self, message: Message) -> None:
        try:
            alive = checks.decode(scheduler_pb2.SchedulerAlive, message.data)
            checks.check_token(alive.scheduler_id, "scheduler_id")
        except InvalidArgument as error:
            self._metrics.bad.note("alive", error, subject=message.subject)
            return
        if alive.is_leaving:
            self._members.on_left(alive.scheduler_id)
        else:
            self._members.on_alive(alive.scheduler_id, time.monotonic())
        self._decide(time.monotonic())

    def _decide(self, now: float) -> None:
        for candidate in self._candidates:
            name = candidate.partition.name
            candidate.leadership.want(self._members.is_owner(name, now))
            has_better = candidate.leader is not None and self._members.has_better_owner(name, now)
            if self._handover.is_due(name, now, is_outweighed=has_better):
                log.info("gives a partition to the scheduler that is to lead it", partition=name)
                candidate.leadership.leave(pause_s=self._handover.pause_s)
