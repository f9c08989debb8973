"""When keys were last used, in Redis: it is written all the time, and by every process.

inferflux:{keys}:last_used    hash    key id -> ms since 1970
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from .guarded import StoreGuard

if TYPE_CHECKING:
    from redis.asyncio import Redis

LAST_USED = "inferflux:{keys}:last_used"


class RedisLastUsed:
    """Every method raises Unavailable when Redis does not answer in time."""

    def __init__(self, redis: Redis, guard: StoreGuard) -> None:
        self._redis = redis
        self._guard = guard

    async def note(self, used_unix_ms: Mapping[str, int]) -> None:
        flat = [item for pair in used_unix_ms.items() for item in pair]
        async with self._guard.limit():
            await self._redis.hset(LAST_USED, items=flat)

    async def all(self) -> dict[str, int]:
        """In ms since 1970, by key id."""
        async with self._guard.limit():
            fields = cast("dict[bytes, bytes]", await self._redis.hgetall(LAST_USED))
        return {key_id.decode(): int(ms) for key_id, ms in fields.items()}

    async def forget(self, key_id: str) -> None:
        async with self._guard.limit():
            await self._redis.hdel(LAST_USED, key_id)
