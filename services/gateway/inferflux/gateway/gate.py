"""A bounded number of questions at a time; the others wait in two lanes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from inferflux.common.errors import ResourceExhausted


class Gate:
    """Places for questions. Who is preferred goes first; within a lane, first come is first served.

    Args:
        at_once: places.
        waiting: questions that may wait in each lane; one more is refused.
    """

    def __init__(self, *, at_once: int, waiting: int) -> None:
        self._n_free = at_once
        self._waiting = waiting
        self._preferred: deque[asyncio.Future[None]] = deque()
        self._others: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def place(self, *, is_preferred: bool) -> AsyncIterator[None]:
        """Hold a place.

        Raises:
            ResourceExhausted: the lane is full.
        """
        if self._n_free:
            self._n_free -= 1
        else:
            await self._wait(self._preferred if is_preferred else self._others)
        try:
            yield
        finally:
            self._give_back()

    async def _wait(self, lane: deque[asyncio.Future[None]]) -> None:
        if len(lane) >= self._waiting:
            message = f"{len(lane)} calls wait to be admitted already"
            raise ResourceExhausted(message, reason="ADMISSION_QUEUE_FULL")
        place = asyncio.get_running_loop().create_future()
        lane.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._give_back()
            raise
        finally:
            with suppress(ValueError):
                lane.remove(place)

    def _give_back(self) -> None:
        """Hand the place to the next that waits."""
        for lane in (self._preferred, self._others):
            while lane:
                place = lane.popleft()
                if not place.done():
                    place.set_result(None)
                    return
        self._n_free += 1
