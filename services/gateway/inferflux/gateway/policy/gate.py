"""A bounded number of questions at a time; the others wait in two lanes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from inferflux.common.contract.errors import ResourceExhausted

from .waiting_line import WaitingLine


class Gate:
    """Places for questions. Who is preferred goes first; within a lane, the most urgent.

    Args:
        at_once: places.
        preferred: questions that may wait in the preferred lane. One more, or a less urgent one, is refused.
        others: the same of the other lane, where no priority counts.
    """

    def __init__(self, *, at_once: int, preferred: int, others: int) -> None:
        self._n_free = at_once
        self._preferred = WaitingLine[asyncio.Future[None]](preferred)
        self._others = WaitingLine[asyncio.Future[None]](others)

    @asynccontextmanager
    async def place(self, *, is_preferred: bool, priority: int = 0) -> AsyncIterator[None]:
        """Hold a place.

        Raises:
            ResourceExhausted: the lane is full, and the others in it are as urgent.
        """
        if self._n_free:
            self._n_free -= 1
        elif is_preferred:
            await self._wait(self._preferred, priority)
        else:
            await self._wait(self._others, 0)
        try:
            yield
        finally:
            self._give_back()

    async def _wait(self, lane: WaitingLine[asyncio.Future[None]], priority: int) -> None:
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        standing, pushed_out = lane.join(place, priority=priority, now=loop.time())
        if pushed_out is not None and not pushed_out.done():
            message = f"{len(lane)} calls wait to be admitted already"
            pushed_out.set_exception(ResourceExhausted(message, reason="ADMISSION_QUEUE_FULL"))
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._give_back()
            raise
        finally:
            lane.leave(standing)

    def _give_back(self) -> None:
        """Hand the place to the next that waits."""
        for lane in (self._preferred, self._others):
            while (place := lane.pop()) is not None:
                if not place.done():
                    place.set_result(None)
                    return
        self._n_free += 1
