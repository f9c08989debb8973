"""The reading end of one request's token subject: the hottest path there is."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from inferflux.common.process import metrics

_MAX_BYTES = 1 << 20
# What a queued message costs beside its payload.
_MESSAGE_OVERHEAD_BYTES = 100


class TokenSubscription:
    """Messages of a subject in order, for one reader.

    A reader slower than the stream loses messages once 1 MiB waits, and everyone does when the connection
    is made again; `dropped` tells.
    """

    def __init__(self, subject: str, close: Callable[[TokenSubscription], None]) -> None:
        self.subject = subject
        self._messages: deque[bytes] = deque()
        self._bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._dropped = False
        self._close = close

    @property
    def dropped(self) -> bool:
        """True if messages may have been lost since the last call. The call clears it."""
        dropped, self._dropped = self._dropped, False
        return dropped

    def mark_dropped(self) -> None:
        self._dropped = True

    async def next(self, timeout_s: float) -> bytes:
        """The next message.

        Raises:
            TimeoutError: none came in `timeout_s` seconds.
        """
        if not self._messages:
            await self._wait(timeout_s)
        if not self._messages:
            raise TimeoutError
        return self._take()

    def next_nowait(self) -> bytes | None:
        """The next message if one is here."""
        return self._take() if self._messages else None

    def close(self) -> None:
        """Unsubscribe. Messages that still arrive are ignored."""
        self._close(self)

    def on_message(self, _subject: bytes, _reply: bytes, data: bytes, _headers: bytes | None) -> None:
        size = len(data) + _MESSAGE_OVERHEAD_BYTES
        if self._bytes + size > _MAX_BYTES and self._messages:
            self._dropped = True
            metrics.BUS_MESSAGES_LOST.labels(subscription="tokens").inc()
            return
        self._messages.append(data)
        self._bytes += size
        if self._waiter is not None:
            _wake(self._waiter)

    def _take(self) -> bytes:
        data = self._messages.popleft()
        self._bytes -= len(data) + _MESSAGE_OVERHEAD_BYTES
        return data

    async def _wait(self, timeout_s: float) -> None:
        """Return when a message has come, or after that time. An error in the future would have this frame,
        which has the future: only the garbage collector would free them, once a second for each stream.
        """
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
