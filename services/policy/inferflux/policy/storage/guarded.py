"""Calls of Redis, within bounds: how many at a time, and how long each may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from inferflux.common.contract.errors import Unavailable
from inferflux.common.redis.store import POOL_SIZE, store_errors


class StoreGuard:
    """Shared by all that call one Redis.

    Args:
        timeout_s: longest wait for one answer.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._places = asyncio.Semaphore(POOL_SIZE)

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Wait for a place, then give Redis its time: a burst waits, and only a slow store is refused.

        Raises:
            Unavailable: Redis is away, or too slow.
        """
        try:
            async with self._places, asyncio.timeout(self.timeout_s):
                with store_errors():
                    yield
        except TimeoutError:
            message = f"the policy store did not answer within {self.timeout_s:g} s"
            raise Unavailable(message, reason="STORE_TIMEOUT") from None
