"""Usage of tenants, in Redis.

    inferflux:{<tenant>}:usage      hash    counters of settled requests
    inferflux:{<tenant>}:settled:<request_id>:<attempt_id>   hash that expires: what was counted for this job

What is kept of limits is in `limits/limiter.lua`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from inferflux.policy.decide.usage import SettledRequest

from .guarded import StoreGuard
from .together import Together

if TYPE_CHECKING:
    from redis.asyncio import Redis

# KEYS: usage, then what was counted for each job. ARGV: seconds that these live, how many fields there are,
# the fields, and for each job their values.
# Counts what each value is above the highest before. Returns what was added, for each job and field in order.
_SETTLE = """
local life, n = ARGV[1], tonumber(ARGV[2])
local added, sums = {}, {}
for job = 2, #KEYS do
  local values = (job - 1) * n + 2
  local fields, before = {}, redis.call('HMGET', KEYS[job], unpack(ARGV, 3, n + 2))
  for i = 1, n do
    local value = ARGV[values + i]
    local more = math.max(tonumber(value) - tonumber(before[i] or '0'), 0)
    if more > 0 then
      fields[#fields + 1] = ARGV[i + 2]
      fields[#fields + 1] = value
      sums[i] = (sums[i] or 0) + more
    end
    added[#added + 1] = more
  end
  if #fields > 0 then redis.call('HSET', KEYS[job], unpack(fields)) end
  redis.call('EXPIRE', KEYS[job], life)
end
for i = 1, n do
  if sums[i] then redis.call('HINCRBY', KEYS[1], ARGV[i + 2], sums[i]) end
end
return added
"""

# Requests that one run of the script settles: Redis does nothing else meanwhile.
_SETTLES = 64


class UsageStore:
    """Counters of tenants. Every method raises Unavailable when Redis does not answer in time."""

    def __init__(self, redis: Redis, *, timeout_s: float, guard: StoreGuard | None = None) -> None:
        self._redis = redis
        self._guard = guard or StoreGuard(timeout_s=timeout_s)
        self._script = redis.register_script(_SETTLE)
        self._settles = Together(self._settle_all, most=_SETTLES)

    async def settle(self, settled: SettledRequest, *, remember_s: int) -> dict[str, int]:
        """Add to its tenant's counters what a job used beyond what was settled for it before. Jobs of a
        tenant that are settled at the same time share a round trip.

        Returns what was added, by counter. A job is forgotten `remember_s` after it was last settled.
        """
        return await self._settles.answer((settled, remember_s))

    async def _settle_all(
        self, asked: Sequence[tuple[SettledRequest, int]]
    ) -> Sequence[dict[str, int] | Exception]:
        places: dict[tuple[str, int], list[int]] = {}
        for place, (settled, remember_s) in enumerate(asked):
            places.setdefault((settled.tenant, remember_s), []).append(place)
        parts = await asyncio.gather(
            *(
                self._settle_tenant(tenant, [asked[place][0] for place in own], remember_s)
                for (tenant, remember_s), own in places.items()
            ),
            return_exceptions=True,
        )
        answers: list[dict[str, int] | Exception] = [{} for _ in asked]
        for own, part in zip(places.values(), parts, strict=True):
            if isinstance(part, BaseException) and not isinstance(part, Exception):
                raise part
            for index, place in enumerate(own):
                answers[place] = part if isinstance(part, Exception) else part[index]
        return answers

    async def _settle_tenant(
        self, tenant: str, jobs: Sequence[SettledRequest], remember_s: int
    ) -> list[dict[str, int]]:
        """Add the usage of jobs, and return what was added for each: all are in one slot of a cluster."""
        prefix = f"inferflux:{{{tenant}}}"
        keys = [f"{prefix}:usage", *(f"{prefix}:settled:{j.request_id}:{j.attempt_id}" for j in jobs)]
        counters = [job.counters() for job in jobs]
        names = list(counters[0])
        values = [each[name] for each in counters for name in names]
        async with self._guard.limit():
            added = cast("list[int]", await self._script(keys, [remember_s, len(names), *names, *values]))
        n = len(names)
        return [dict(zip(names, added[i * n : (i + 1) * n], strict=True)) for i in range(len(jobs))]

    async def usage(self, tenant: str) -> dict[str, int]:
        """The counters of a tenant: see `SettledRequest.counters`."""
        async with self._guard.limit():
            fields = await self._redis.hgetall(f"inferflux:{{{tenant}}}:usage")
        return {k.decode(): int(v) for k, v in cast("dict[bytes, bytes]", fields).items()}
