"""Redis as the storage, with every value in clear."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferflux.common.contract.errors import InvalidArgument, Unavailable
from inferflux.policy.storage.guarded import StoreGuard
from inferflux.policy.storage.sealed import PASSPHRASE

from .guardrails import RedisGuardrails
from .keys import RedisKeys
from .limits import RedisRateLimits
from .table import REVISION

if TYPE_CHECKING:
    from redis.asyncio import Redis


class RedisStorage:
    """A `Storage`: everything is read anew with each call.

    Args:
        redis: stays the caller's to close.
    """

    # The limiter's script reads limits itself.
    rules_of_limiter = None

    def __init__(self, redis: Redis, guard: StoreGuard) -> None:
        self._redis = redis
        self._guard = guard
        self.keys = RedisKeys(redis, guard)
        self.rate_limits = RedisRateLimits(redis, guard)
        self.guardrails = RedisGuardrails(redis, guard)

    async def open(self) -> None:
        try:
            is_encrypted = await self._is_encrypted()
        except Unavailable:
            return  # calls are refused while Redis does not answer
        if is_encrypted:
            raise InvalidArgument(f"{PASSPHRASE} must be set: {_ENCRYPTED}", field=PASSPHRASE)

    async def check(self) -> None:
        if await self._is_encrypted():
            raise Unavailable(f"{_ENCRYPTED}, and there is no passphrase", reason="STORE_UNREADABLE")

    async def aclose(self) -> None:
        pass

    async def _is_encrypted(self) -> bool:
        async with self._guard.limit():
            return bool(await self._redis.exists(REVISION))


_ENCRYPTED = "what policy keeps in Redis is encrypted"
