"""What tenants have used, in Redis.

    inferflux:{<tenant>}:usage      hash    counters of settled requests
    inferflux:{<tenant>}:settled:<request_id>:<attempt_id>   hash that expires: what was counted for this job

What is kept of limits is in `limits/limiter.lua`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .guarded import StoreGuard
from .usage import SettledRequest

if TYPE_CHECKING:
    from redis.asyncio import Redis

# KEYS: counted for the job, usage. ARGV: seconds the first lives, field, value, ...
# Counts what each value is above the highest before. Returns what was added, in the order of the fields.
_SETTLE = """
local added = {}
for i = 2, #ARGV, 2 do
  local more = tonumber(ARGV[i + 1]) - tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0')
  if more > 0 then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    redis.call('HINCRBY', KEYS[2], ARGV[i], more)
  else
    more = 0
  end
  added[#added + 1] = more
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return added
"""


class UsageStore:
    """Counters of tenants. Every method raises Unavailable when Redis does not answer in time."""

    def __init__(self, redis: Redis, *, timeout_s: float, guard: StoreGuard | None = None) -> None:
        self._redis = redis
        self._guard = guard or StoreGuard(timeout_s=timeout_s)
        self._settle = redis.register_script(_SETTLE)

    async def settle(self, settled: SettledRequest, *, remember_s: int) -> dict[str, int]:
        """Add to its tenant's counters what a job used beyond what was settled for it before.

        Returns what was added, by counter. A job is forgotten `remember_s` after it was last settled.
        """
        prefix = f"inferflux:{{{settled.tenant}}}"
        keys = [f"{prefix}:settled:{settled.request_id}:{settled.attempt_id}", f"{prefix}:usage"]
        counters = settled.counters()
        flat = [x for pair in counters.items() for x in pair]
        async with self._guard.limit():
            added = cast("list[int]", await self._settle(keys, [remember_s, *flat]))
        return dict(zip(counters, added, strict=True))

    async def usage(self, tenant: str) -> dict[str, int]:
        """The counters of a tenant: see `SettledRequest.counters`."""
        async with self._guard.limit():
            fields = await self._redis.hgetall(f"inferflux:{{{tenant}}}:usage")
        return {k.decode(): int(v) for k, v in cast("dict[bytes, bytes]", fields).items()}
