"""The streams a gateway serves at this moment: at most so many, and ended together when it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from inferflux.common.errors import ResourceExhausted, Unavailable

_DRAIN_RETRY_S = 1.0


class Streams:
    """Places for streams.

    Args:
        limit: most streams at the same time; one more is refused.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tasks: set[asyncio.Task[object]] = set()
        self._followers: set[asyncio.Task[None]] = set()
        # Followers that take places.
        self._n_held = 0
        self._all_ended = asyncio.Event()
        self._all_ended.set()
        self.is_draining = False
        # Set when the drain limit has passed: streams that still run are ended.
        self.is_over = False

    def __len__(self) -> int:
        return len(self._tasks)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place for the stream that the current task serves.

        Raises:
            Unavailable: the gateway takes no new streams.
            ResourceExhausted: all places are taken.
        """
        if self.is_draining:
            raise Unavailable(
                "this gateway is shutting down", reason="DRAINING", retry_delay_s=_DRAIN_RETRY_S
            )
        if len(self._tasks) + self._n_held >= self._limit:
            message = f"this gateway serves {self._limit} streams already, and no more"
            raise ResourceExhausted(message, reason="TOO_MANY_STREAMS")
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a stream is served by a task")
        self._tasks.add(task)
        self._all_ended.clear()
        try:
            yield
        finally:
            self._tasks.discard(task)
            if not self._tasks:
                self._all_ended.set()

    def follow(self, work: Coroutine[Any, Any, None], *, holds_place: bool) -> None:
        """Go on reading a stream whose client has left, until it ends or the gateway leaves.

        Args:
            holds_place: it counts among the streams, as its client did.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._followers.add(task)
        self._n_held += holds_place

        def on_done(_: asyncio.Task[None]) -> None:
            self._followers.discard(task)
            self._n_held -= holds_place

        task.add_done_callback(on_done)

    async def drain(self, limit_s: float) -> None:
        """Take no new streams; give those that run `limit_s` seconds, then end them and the followers."""
        self.is_draining = True
        if not await self._ended_within(limit_s):
            self.is_over = True
            for task in list(self._tasks):
                task.cancel()
            await self._ended_within(2.0)
        for follower in self._followers:
            follower.cancel()
        if self._followers:
            await asyncio.wait(self._followers, timeout=1.0)

    async def _ended_within(self, limit_s: float) -> bool:
        try:
            await asyncio.wait_for(self._all_ended.wait(), limit_s)
        except TimeoutError:
            return False
        return True
