"""The reader of one request on this gateway, as the scheduler is told of it until it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from inferflux.common.contract.errors import DeadlineExceeded, Unavailable
from inferflux.common.process.tasks import Background
from inferflux.v1 import scheduler_pb2

from .canceller import Canceller
from .readers import Left, ReaderReports

# After an outage of NATS: between two attempts to tell the scheduler, and how many there are. Beyond that the
# request is ended by the scheduler, because its reader is not reported.
_RETRY_S = 0.5
_RETRIES = 60


@dataclass(frozen=True, slots=True)
class ReaderServices:
    """How readers of this gateway are reported, and requests without one cancelled."""

    reports: ReaderReports
    canceller: Canceller
    background: Background


class Reader:
    """A reader of one request.

    Args:
        on_found: told of the request by the scheduler, where it is announced and the scheduler knows it.

    Attributes:
        window_s: resume window of the request; None while it is not known.
        is_joined: whether there is, or may be, a job to settle; it is then reported.
    """

    def __init__(
        self,
        readers: ReaderServices,
        tenant: str,
        request_id: str,
        *,
        on_found: Callable[[scheduler_pb2.ReaderReply], None],
    ) -> None:
        self.window_s: int | None = None
        self.is_joined = False
        self._readers = readers
        self._on_found = on_found
        self._read = scheduler_pb2.ReadRequest(tenant=tenant, request_id=request_id)

    @property
    def attempt_id(self) -> str:
        """The attempt that is read; "" while it is not known."""
        return self._read.attempt_id

    @attempt_id.setter
    def attempt_id(self, attempt_id: str) -> None:
        self._read.attempt_id = attempt_id

    def join(self) -> None:
        """Be reported from now on."""
        self.is_joined = True
        self._readers.reports.local.join(self._read)

    def leave(self) -> bool:
        """Be reported no more. Returns whether it was the last reader of the request here."""
        return self._readers.reports.local.leave(self._read)

    def announce(self) -> asyncio.Task[scheduler_pb2.ReaderReply | None]:
        """Tell the scheduler now that it reads a stream that was begun before, not with the next report.

        The task's result is the scheduler's answer; None without one.
        """
        return self._readers.background.start(self._announce())

    async def _announce(self) -> scheduler_pb2.ReaderReply | None:
        try:
            reply = await self._readers.reports.join(self._read)
        except (DeadlineExceeded, Unavailable):
            return None
        if reply.was_found:
            # The answer may be late: what the terminal chunk said holds.
            self.attempt_id = self.attempt_id or reply.attempt_id
            self.window_s = reply.resume_window_s
            self._on_found(reply)
        return reply

    def withdraw(self, announcing: asyncio.Task[scheduler_pb2.ReaderReply | None]) -> None:
        """Undo its coming: the scheduler decides by the other readers what becomes of the request."""
        self.is_joined = False
        if self.leave():
            self._readers.background.start(self._take_back(announcing))

    async def _take_back(self, announcing: asyncio.Task[scheduler_pb2.ReaderReply | None]) -> None:
        reply = await announcing
        if reply is not None and reply.was_found:
            await self._readers.reports.leave(self._read, is_handed_over=False)

    def abandon(self) -> None:
        """Have the attempt cancelled, in the background: there is nothing to resume."""
        self._readers.background.start(self._readers.canceller.abandon(self._read, may_be_underway=False))

    def depart(self, *, has_received: bool, is_handed_over: bool) -> None:
        """Tell the scheduler, in the background, that no client reads on here. Cancel the request if it has
        neither a window nor another reader.

        Where no scheduler leads, the workers are told at once: a request without a window does not wait for
        the next leader. After an outage of NATS the scheduler is waited for: meanwhile the request may have
        been resumed elsewhere.

        Args:
            has_received: whether a chunk of it has come, so that its job has certainly reached the scheduler.
            is_handed_over: the gateway ended the stream; the client is told to resume it.
        """
        work = self._depart(self.window_s, has_received=has_received, is_handed_over=is_handed_over)
        self._readers.background.start(work)

    async def _depart(self, window_s: int | None, *, has_received: bool, is_handed_over: bool) -> None:
        left = await self._tell_left(is_handed_over=is_handed_over)
        if is_handed_over or left in (Left.KEPT, Left.UNSENT):
            return
        is_ours_to_end = window_s == 0 and bool(self.attempt_id)
        if left is Left.MAY_CANCEL or is_ours_to_end:
            await self._readers.canceller.abandon(self._read, may_be_underway=not has_received)

    async def _tell_left(self, *, is_handed_over: bool) -> Left:
        reports = self._readers.reports
        left = await reports.leave(self._read, is_handed_over=is_handed_over)
        was_away = left is Left.UNSENT
        for _ in range(_RETRIES if was_away else 0):
            await asyncio.sleep(_RETRY_S)
            left = await reports.leave(self._read, is_handed_over=is_handed_over)
            if left not in (Left.UNSENT, Left.UNANSWERED):
                return left
        return Left.UNSENT if was_away else left
