"""The streams a gateway serves at this moment: a bounded number, and ended together when it leaves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from inferflux.common.contract.callers.places import may_have_more
from inferflux.common.contract.errors import ResourceExhausted, Unavailable
from inferflux.common.process.tasks import Background, is_set_within

_DRAIN_RETRY_S = 1.0


class Streams:
    """Places for streams.

    Args:
        limit: most streams at the same time; one more is refused.
        tenant_limit: most of one tenant. 0: beside others as many as it leaves free; alone nearly all.
    """

    def __init__(self, limit: int, tenant_limit: int = 0) -> None:
        self._limit = limit
        self._tenant_limit = tenant_limit
        self._by_tenant: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[object]] = set()
        self._followers = Background()
        # Places of followers.
        self._n_held = 0
        self._all_ended = asyncio.Event()
        self._all_ended.set()
        self.is_draining = False
        # Set when the drain limit has passed: streams that still run are ended.
        self.is_over = False

    def __len__(self) -> int:
        return len(self._tasks)

    def _may_have_more(self, tenant: str) -> bool:
        held = self._by_tenant[tenant]
        if self._tenant_limit:
            return held < self._tenant_limit
        free = self._limit - self._n_places
        is_alone = not self._by_tenant.keys() - {tenant}
        return may_have_more(held, free=free, size=self._limit, is_alone=is_alone)

    @property
    def _n_places(self) -> int:
        return len(self._tasks) + self._n_held

    def _leave(self, tenant: str) -> None:
        self._by_tenant[tenant] -= 1
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]

    @contextmanager
    def place(self, tenant: str) -> Iterator[None]:
        """Hold a place for the stream that the current task serves.

        Raises:
            Unavailable: the gateway takes no new streams.
            ResourceExhausted: all places are taken, or all that the tenant may have.
        """
        if self.is_draining:
            raise Unavailable(
                "this gateway is shutting down", reason="DRAINING", retry_delay_s=_DRAIN_RETRY_S
            )
        if self._n_places >= self._limit:
            message = f"this gateway serves {self._limit} streams already, and no more"
            raise ResourceExhausted(message, reason="TOO_MANY_STREAMS")
        if not self._may_have_more(tenant):
            held = self._by_tenant[tenant]
            message = f"tenant {tenant} has {held} streams here already, as many as one tenant may have now"
            raise ResourceExhausted(message, reason="TENANT_TOO_MANY_STREAMS")
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a stream is served by a task")
        self._tasks.add(task)
        self._by_tenant[tenant] += 1
        self._all_ended.clear()
        try:
            yield
        finally:
            self._tasks.discard(task)
            self._leave(tenant)
            if not self._tasks:
                self._all_ended.set()

    def follow(self, work: Coroutine[Any, Any, None], *, tenant: str, on_end: Callable[[], None]) -> None:
        """Go on reading a stream whose client has left, until it ends or the gateway leaves.

        Args:
            tenant: it counts among its streams, as it did for its client.
            on_end: called once when the work has ended, also when it was cancelled before it began.
        """
        self._n_held += 1
        self._by_tenant[tenant] += 1

        def on_done(_: asyncio.Task[None]) -> None:
            self._n_held -= 1
            self._leave(tenant)
            on_end()

        self._followers.start(work).add_done_callback(on_done)

    async def end_within(self, limit_s: float) -> bool:
        """Whether no stream runs, after at most `limit_s` seconds."""
        return await is_set_within(self._all_ended, limit_s)

    async def drain(self, limit_s: float) -> None:
        """Take no new streams; give those that run `limit_s` seconds, then end them and the followers."""
        self.is_draining = True
        if not await is_set_within(self._all_ended, limit_s):
            self.is_over = True
            for task in list(self._tasks):
                task.cancel()
            await is_set_within(self._all_ended, 2.0)
        await self._followers.close()
