"""What policy keeps in Redis, and nothing but that.

    inferflux:{keys}:key:<sha256>   hash    one API key
    inferflux:{keys}:index          hash    key id -> sha256
    inferflux:{keys}:bootstrapped   set     digests (or GENERATED) ever written at a start
    inferflux:{<tenant>}:usage      hash    counters of settled requests
    inferflux:{<tenant>}:settled:<request_id>:<attempt_id>   hash that expires: what was counted for this job

The braces keep together, in a Redis cluster, what one script touches. Every call but `all_keys` is one round
trip (a script's first use after a server start is three) and ends within `timeout_s`: what cannot be read
is refused, never assumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from inferflux.common.errors import Unavailable
from inferflux.common.store import POOL_SIZE, store_errors

from .keys import ApiKeyRecord
from .usage import SettledRequest

if TYPE_CHECKING:
    from redis.asyncio import Redis

GENERATED = "generated"

_KEY = "inferflux:{keys}:key:"
_INDEX = "inferflux:{keys}:index"
_BOOTSTRAPPED = "inferflux:{keys}:bootstrapped"
_LIST_BATCH = 256

# KEYS: index, record. ARGV: key id, digest, field, value, ...
_ADD = """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[2], unpack(ARGV, 3))
"""

# KEYS: index. ARGV: record prefix, key id. Returns 1 when there was such a key.
_REVOKE = """
local digest = redis.call('HGET', KEYS[1], ARGV[2])
if not digest then return 0 end
redis.call('DEL', ARGV[1] .. digest)
redis.call('HDEL', KEYS[1], ARGV[2])
return 1
"""

# KEYS: index, record, bootstrapped. ARGV: mark, only if empty (1|0), key id, digest, field, value, ...
# Returns 1 when the key was written: only at the first time of its mark, so a revoked key stays revoked.
_BOOTSTRAP = """
if redis.call('SADD', KEYS[3], ARGV[1]) == 0 then return 0 end
if ARGV[2] == '1' and redis.call('HLEN', KEYS[1]) > 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
redis.call('HSET', KEYS[2], unpack(ARGV, 5))
return 1
"""

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


class PolicyStore:
    """API keys and usage counters. Every method raises Unavailable when Redis does not answer in time."""

    def __init__(self, redis: Redis, *, timeout_s: float) -> None:
        self._redis = redis
        self._timeout_s = timeout_s
        self._places = asyncio.Semaphore(POOL_SIZE)
        self._add = redis.register_script(_ADD)
        self._revoke = redis.register_script(_REVOKE)
        self._bootstrap = redis.register_script(_BOOTSTRAP)
        self._settle = redis.register_script(_SETTLE)

    async def find(self, digest: str) -> ApiKeyRecord | None:
        """The key with this digest: the gateway's hot path."""
        async with self._limit():
            fields = await self._redis.hgetall(_KEY + digest)
        return ApiKeyRecord.from_fields(digest, cast("dict[bytes, bytes]", fields)) if fields else None

    async def add(self, record: ApiKeyRecord) -> None:
        async with self._limit():
            await self._add([_INDEX, _KEY + record.digest], _written(record))

    async def all_keys(self, *, tenant: str = "") -> list[ApiKeyRecord]:
        """Every key, or every key of a tenant, oldest first."""
        async with self._limit():
            index = cast("dict[bytes, bytes]", await self._redis.hgetall(_INDEX))
        records: list[ApiKeyRecord] = []
        for digests in _batched([d.decode() for d in index.values()], _LIST_BATCH):
            records += await self._find_all(digests)
        wanted = (r for r in records if not tenant or r.tenant == tenant)
        return sorted(wanted, key=lambda r: (r.created_unix_ms, r.key_id))

    async def _find_all(self, digests: Sequence[str]) -> list[ApiKeyRecord]:
        """The records of those keys that are still there."""
        pipeline = self._redis.pipeline(transaction=False)
        for digest in digests:
            pipeline.hgetall(_KEY + digest)
        async with self._limit():
            rows = await pipeline.execute()
        return [ApiKeyRecord.from_fields(d, row) for d, row in zip(digests, rows, strict=True) if row]

    async def revoke(self, key_id: str) -> bool:
        """Remove a key; False if there is none of that id."""
        async with self._limit():
            return bool(await self._revoke([_INDEX], [_KEY, key_id]))

    async def is_bootstrapped(self, mark: str) -> bool:
        """Whether `bootstrap` was ever called with this mark on the store as it is now."""
        async with self._limit():
            return bool(await self._redis.sismember(_BOOTSTRAPPED, mark))

    async def bootstrap(self, record: ApiKeyRecord, *, mark: str, only_if_empty: bool) -> bool:
        """Write a key unless its mark was seen before; False if it was not written."""
        keys = [_INDEX, _KEY + record.digest, _BOOTSTRAPPED]
        async with self._limit():
            return bool(await self._bootstrap(keys, [mark, int(only_if_empty), *_written(record)]))

    async def settle(self, settled: SettledRequest, *, remember_s: int) -> dict[str, int]:
        """Add to its tenant's counters what a job used beyond what was settled for it before.

        Returns what was added, by counter. A job is forgotten `remember_s` after it was last settled.
        """
        prefix = f"inferflux:{{{settled.tenant}}}"
        keys = [f"{prefix}:settled:{settled.request_id}:{settled.attempt_id}", f"{prefix}:usage"]
        counters = settled.counters()
        flat = [x for pair in counters.items() for x in pair]
        async with self._limit():
            added = cast("list[int]", await self._settle(keys, [remember_s, *flat]))
        return dict(zip(counters, added, strict=True))

    async def usage(self, tenant: str) -> dict[str, int]:
        """The counters of a tenant: see `SettledRequest.counters`."""
        async with self._limit():
            fields = await self._redis.hgetall(f"inferflux:{{{tenant}}}:usage")
        return {k.decode(): int(v) for k, v in cast("dict[bytes, bytes]", fields).items()}

    @asynccontextmanager
    async def _limit(self) -> AsyncIterator[None]:
        """Wait for a place, then give Redis its time: a burst waits, and only a slow store is refused."""
        try:
            async with self._places, asyncio.timeout(self._timeout_s):
                with store_errors():
                    yield
        except TimeoutError:
            message = f"the policy store did not answer within {self._timeout_s:g} s"
            raise Unavailable(message, reason="STORE_TIMEOUT") from None


def _written(record: ApiKeyRecord) -> list[str]:
    return [record.key_id, record.digest, *(x for pair in record.fields().items() for x in pair)]


def _batched(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (items[i : i + size] for i in range(0, len(items), size))
