"""Redis as the storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferflux.policy.guarded import StoreGuard

from .redis_guardrails import RedisGuardrails
from .redis_keys import RedisKeys
from .redis_limits import RedisRateLimits

if TYPE_CHECKING:
    from redis.asyncio import Redis


class RedisStorage:
    """A `Storage`: everything is read anew with each call.

    Args:
        redis: stays the caller's to close.
    """

    def __init__(self, redis: Redis, guard: StoreGuard) -> None:
        self.keys = RedisKeys(redis, guard)
        self.rate_limits = RedisRateLimits(redis, guard)
        self.guardrails = RedisGuardrails(redis, guard)

    async def open(self) -> None:
        """It can be used whether Redis answers or not: calls are refused while it does not."""

    async def aclose(self) -> None:
        pass
