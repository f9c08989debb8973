"""Keeps the lease of a partition in the bus's key-value store, or waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import uuid

from inferflux.common.bus import Bus
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InferFluxError
from inferflux.common.contract.partitions import Partition
from inferflux.common.process import logs
from inferflux.scheduler.core.lease.lease import Lease, LeaseTimes, Read, Role, Write

log = logs.get("scheduler.leadership")

# How long it may take to tell the others that this one leaves.
RELEASE_LIMIT_S = 1.0


class Leadership:
    """This process's part in who leads.

    Args:
        holder: its name.
        partition: what is led: each partition has a leader of its own.
        lease_s: how long a lease stands that is not renewed.
    """

    def __init__(self, bus: Bus, *, holder: str, partition: Partition, lease_s: float) -> None:
        self._bucket = bus.key_value(subjects.SCHEDULERS_BUCKET)
        self._key = subjects.scheduler_lease(partition)
        self._lease = Lease(holder, uuid.uuid4().hex, LeaseTimes(lease_s))
        self._log = log.bind(partition=partition.name)
        self._role = Role.STANDBY
        self._leads = asyncio.Event()
        self._does_not_lead = asyncio.Event()
        self._does_not_lead.set()
        self._is_ending = False
        self._wake = asyncio.Event()

    @property
    def term(self) -> int:
        return self._lease.term

    @property
    def holder(self) -> str:
        """The leader that was last seen; empty when no scheduler leads."""
        return self._lease.holder

    @property
    def has_seen_leader(self) -> bool:
        return self._lease.has_seen_leader

    @property
    def is_held(self) -> bool:
        """True if this process leads and, by its clock, no other can."""
        return self._lease.is_held(time.monotonic())

    async def run(self) -> None:
        """Renew or await the lease, until `end`."""
        while not (self._is_ending and self._lease.role is Role.STANDBY):
            todo = self._lease.next(time.monotonic(), time.time_ns() // 1_000_000)
            if todo is None:
                await self._sleep(self._lease.due_s - time.monotonic())
                continue
            await self._do(todo)
            self._follow()

    async def until_leading(self) -> int:
        """Return the term once this process leads."""
        await self._leads.wait()
        return self._lease.term

    async def until_lost(self) -> None:
        """Return once this process does not lead."""
        await self._does_not_lead.wait()

    def on_term(self, term: int) -> None:
        """A worker has seen this term."""
        self._lease.on_term(term, time.monotonic())
        self._follow()

    def want(self, is_wanted: bool) -> None:
        """Say whether this process is to lead rather than others that live."""
        self._lease.want(is_wanted)

    def leave(self, *, pause_s: float = 0.0) -> None:
        """Stop leading, let the next know, and claim nothing for `pause_s` seconds."""
        now = time.monotonic()
        self._lease.leave(now, claim_from_s=now + pause_s)
        self._follow()

    def end(self) -> None:
        """Stop leading for good: `run` returns once the next knows."""
        self._is_ending = True
        self._lease.leave(time.monotonic(), claim_from_s=math.inf)
        self._follow()

    async def _do(self, todo: Read | Write) -> None:
        timeout_s = self._lease.times.answer_s
        try:
            match todo:
                case Read():
                    entry = await self._bucket.get(self._key, timeout_s=timeout_s)
                    value, revision = entry if entry is not None else (None, 0)
                    self._lease.on_read(value, revision, time.monotonic())
                case Write(record, 0):
                    written = await self._bucket.create(self._key, record.encode(), timeout_s=timeout_s)
                    self._lease.on_written(written, time.monotonic())
                case Write(record, over):
                    written = await self._bucket.update(
                        self._key, record.encode(), revision=over, timeout_s=timeout_s
                    )
                    self._lease.on_written(written, time.monotonic())
        except InferFluxError as error:
            self._log.debug("the lease could not be read or written", reason=error.reason)
            self._lease.on_unanswered(time.monotonic())

    def _follow(self) -> None:
        """Tell those who wait, and the log, what has become of it."""
        role, was = self._lease.role, self._role
        if role is was:
            return
        self._role = role
        self._wake.set()
        for event, is_so in (
            (self._leads, role is Role.LEADER),
            (self._does_not_lead, role is not Role.LEADER),
        ):
            if is_so:
                event.set()
            else:
                event.clear()
        if role is Role.LEADER:
            self._log.info("leads", term=self._lease.term)
        elif role is Role.LEAVING:
            self._log.info("stops leading", term=self._lease.term)
        elif was is Role.LEADER:
            self._log.warning("another scheduler leads", term=self._lease.term, leader=self._lease.holder)

    async def _sleep(self, delay_s: float) -> None:
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._wake.wait()
