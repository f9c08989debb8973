"""Readers that this gateway has, reported by request to the scheduler, which decides what ends."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from enum import Enum, auto

from inferflux.common.bus import Bus
from inferflux.common.bus.leaders import ask_who_has
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import DeadlineExceeded, InferFluxError, Unavailable
from inferflux.common.process import logs
from inferflux.v1 import scheduler_pb2

log = logs.get()

_REPORT_INTERVAL_S = 1.0
# Requests in one message: some 100 bytes each.
_REPORTED_AT_ONCE = 1000
# Reasons of errors that mean that NATS is away.
_AWAY = frozenset({"NOT_CONNECTED", "CONNECTION_LOST"})


class LocalReaders:
    """Readers on this gateway, by tenant and request id (pure).

    Each reader's message is kept as it is: an attempt that becomes known later is reported from then on.
    """

    def __init__(self) -> None:
        self._reads: dict[tuple[str, str], list[scheduler_pb2.ReadRequest]] = {}

    def __len__(self) -> int:
        return len(self._reads)

    def join(self, read: scheduler_pb2.ReadRequest) -> None:
        """One reader more."""
        self._reads.setdefault((read.tenant, read.request_id), []).append(read)

    def leave(self, read: scheduler_pb2.ReadRequest) -> bool:
        """One reader less; whether it was the last."""
        key = read.tenant, read.request_id
        reads = self._reads[key]
        reads.remove(read)
        if not reads:
            del self._reads[key]
        return not reads

    def batches(self, size: int) -> Iterator[list[scheduler_pb2.ReadRequest]]:
        """All attempts that are read, `size` at a time."""
        read = [
            scheduler_pb2.ReadRequest(tenant=tenant, request_id=request_id, attempt_id=attempt_id)
            for (tenant, request_id), reads in self._reads.items()
            for attempt_id in _attempts(reads)
        ]
        return (read[i : i + size] for i in range(0, len(read), size))


def _attempts(reads: list[scheduler_pb2.ReadRequest]) -> list[str]:
    """The attempts that readers of one request name, each once; "" where none does."""
    return list(dict.fromkeys(read.attempt_id for read in reads if read.attempt_id)) or [""]


class Left(Enum):
    """The scheduler's answer to a reader's leaving."""

    # Others read the request, or its window runs.
    KEPT = auto()
    # It has neither.
    MAY_CANCEL = auto()
    # There is no such job, or not yet.
    UNKNOWN = auto()
    # No scheduler leads, or it does not answer.
    UNANSWERED = auto()
    # NATS is away.
    UNSENT = auto()


class ReaderReports:
    """Tells the scheduler what is read here.

    Args:
        timeout_s: longest wait for one of its answers.
    """

    def __init__(self, bus: Bus, *, timeout_s: float) -> None:
        self.local = LocalReaders()
        self._bus = bus
        self._timeout_s = timeout_s
        self._gateway_id = secrets.token_hex(8)

    async def run(self) -> None:
        """Report once a second, for ever. While NATS is away nothing is: old reports would not help."""
        while True:
            await asyncio.sleep(_REPORT_INTERVAL_S)
            if self._bus.is_connected:
                await self._report()

    async def join(self, read: scheduler_pb2.ReadRequest) -> scheduler_pb2.ReaderReply:
        """Say that a stream was resumed here.

        Raises:
            Unavailable, DeadlineExceeded: no scheduler answers. The next report says it again.
        """
        notice = self._notice()
        notice.joined.request.CopyFrom(read)
        return await self._ask(notice)

    async def leave(self, read: scheduler_pb2.ReadRequest, *, is_handed_over: bool) -> Left:
        """Say that the last reader here has left; the scheduler has said whether that ends the request."""
        notice = self._notice()
        notice.left.request.CopyFrom(read)
        notice.left.is_handed_over = is_handed_over
        try:
            reply = await self._ask(notice)
        except (Unavailable, DeadlineExceeded) as error:
            return Left.UNSENT if error.reason in _AWAY else Left.UNANSWERED
        if not reply.was_found:
            return Left.UNKNOWN
        return Left.MAY_CANCEL if reply.may_cancel else Left.KEPT

    async def _report(self) -> None:
        for batch in self.local.batches(_REPORTED_AT_ONCE):
            notice = self._notice()
            notice.now.requests.extend(batch)
            try:
                await self._bus.publish(subjects.SCHEDULER_READERS, notice.SerializeToString())
            except InferFluxError as error:
                log.debug("readers were not reported", reason=error.reason)

    async def _ask(self, notice: scheduler_pb2.ReaderNotice) -> scheduler_pb2.ReaderReply:
        subject, kind = subjects.SCHEDULER_READERS, scheduler_pb2.ReaderReply
        return await ask_who_has(
            self._bus, subject, notice, kind, timeout_s=self._timeout_s, is_found=lambda r: r.was_found
        )

    def _notice(self) -> scheduler_pb2.ReaderNotice:
        return scheduler_pb2.ReaderNotice(gateway_id=self._gateway_id)
