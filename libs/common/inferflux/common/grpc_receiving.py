"""Messages that are arriving: a bounded number at a time, so that what they hold stays bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from inferflux.common.errors import DeadlineExceeded, InferFluxError, ResourceExhausted


class Receiving:
    """Places for messages that are being received.

    The body of an honest call follows its headers at once. A call that has held its place for `grace_s` loses
    it as soon as another call needs it, so slow senders cannot keep others out.

    Args:
        limit: messages at a time.
        grace_s: how long a call keeps its place in any case, in seconds.
        time_limit_s: how long a message may take to arrive, in seconds.
    """

    def __init__(self, limit: int, *, grace_s: float, time_limit_s: float) -> None:
        self._limit = limit
        self._grace_s = grace_s
        self._time_limit_s = time_limit_s
        # The taken places, oldest first, and since when they are taken.
        self._taken: dict[asyncio.Timeout, float] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._taken)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place while a message arrives.

        Raises:
            ResourceExhausted: another call needed the place.
            DeadlineExceeded: the message took longer than the limit.
        """
        while len(self._taken) >= self._limit:
            await self._make_room()
        timeout = asyncio.timeout(self._time_limit_s)
        try:
            async with timeout:
                self._taken[timeout] = _now()
                yield
        except TimeoutError:
            if not timeout.expired():
                raise
            raise self._refusal(was_displaced=timeout not in self._taken) from None
        finally:
            if self._taken.pop(timeout, None) is not None:
                self._wake_next()

    async def _make_room(self) -> None:
        """Return when a place may be free: the oldest is displaced, or one was given back."""
        oldest, since = next(iter(self._taken.items()))
        left_s = since + self._grace_s - _now()
        if left_s <= 0:
            del self._taken[oldest]
            oldest.reschedule(_now())
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(waiter, left_s)
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake_next()
            raise
        finally:
            with suppress(ValueError):
                self._waiters.remove(waiter)

    def _wake_next(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _refusal(self, *, was_displaced: bool) -> InferFluxError:
        if was_displaced:
            message = "the request's body came too slowly while other calls waited"
            return ResourceExhausted(message, reason="BODY_TOO_SLOW")
        message = f"the request's body did not arrive within {self._time_limit_s:g} s"
        return DeadlineExceeded(message, reason="BODY_TOO_SLOW")


def _now() -> float:
    return asyncio.get_running_loop().time()
