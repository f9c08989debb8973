"""A table in Redis, for values that are encrypted.

inferflux:{policy}:revision    of all of it
inferflux:{policy}:rows        hash    <kind> <name> -> value
inferflux:{policy}:large       hash    the same of rows that may be large
inferflux:{policy}:changed     zset    <kind> <name> of what was changed or removed lately, by revision
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, cast

from inferflux.policy.storage.guarded import StoreGuard
from inferflux.policy.storage.table import LARGE, REMEMBERED_MS, Changes, Edits, Row

from .replicated import ReplicatedWrites

if TYPE_CHECKING:
    from redis.asyncio import Redis

_PREFIX = "inferflux:{policy}:"
REVISION = f"{_PREFIX}revision"
_ROWS, _LARGE, _CHANGED = (f"{_PREFIX}{name}" for name in ("rows", "large", "changed"))

# KEYS: revision, rows, changed. ARGV: a revision, how long changes are remembered (ms). Returns the
# revision; where it is another one, also `part` with names and values of what has changed, or `whole` with
# all rows.
_READ = """
local revision = redis.call('GET', KEYS[1]) or '0'
local since = tonumber(ARGV[1])
if tonumber(revision) == since then return {revision} end
if since < tonumber(revision) and since > tonumber(revision) - tonumber(ARGV[2]) then
  local names = redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. ARGV[1], '+inf', 'LIMIT', 0, 1000)
  if #names > 0 and #names < 1000 then
    return {revision, 'part', names, redis.call('HMGET', KEYS[2], unpack(names))}
  end
end
return {revision, 'whole', redis.call('HGETALL', KEYS[2])}
"""

# KEYS: revision, rows, changed, large. ARGV: revision before, new one, how long changes are remembered (ms),
# then for each row: its hash (an index of KEYS), name, `set` or `del`, value. Returns 1 if it was written.
_WRITE = """
if tonumber(redis.call('GET', KEYS[1]) or '0') ~= tonumber(ARGV[1]) then return 0 end
for i = 4, #ARGV, 4 do
  local hash, name = KEYS[tonumber(ARGV[i])], ARGV[i + 1]
  if ARGV[i + 2] == 'set' then
    redis.call('HSET', hash, name, ARGV[i + 3])
  else
    redis.call('HDEL', hash, name)
  end
  if hash == KEYS[2] then redis.call('ZADD', KEYS[3], ARGV[2], name) end
end
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', tonumber(ARGV[2]) - tonumber(ARGV[3]))
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""


class RedisTable:
    """A `Table`."""

    def __init__(self, redis: Redis, guard: StoreGuard) -> None:
        self._redis = redis
        self._guard = guard
        self._writes = ReplicatedWrites(redis, guard)
        self._read = redis.register_script(_READ)
        self._write = redis.register_script(_WRITE)

    async def open(self) -> None:
        """It can be used whether Redis answers or not: calls are refused while it does not."""

    async def changes(self, since: int) -> Changes:
        async with self._guard.limit():
            answer = await self._read([REVISION, _ROWS, _CHANGED], [since, REMEMBERED_MS])
        revision, *more = cast("list[bytes]", answer)
        if not more:
            return Changes(int(revision), {})
        kind, *lists = cast("tuple[bytes, list[bytes | None], list[bytes | None]]", tuple(more))
        names, values = (lists[0][::2], lists[0][1::2]) if kind == b"whole" else (lists[0], lists[1])
        rows = {
            Row.parse((name or b"").decode()): _text(value) for name, value in zip(names, values, strict=True)
        }
        return Changes(int(revision), rows, is_whole=kind == b"whole")

    async def large(self, rows: Sequence[Row]) -> list[str | None]:
        if not rows:
            return []
        async with self._guard.limit():
            values = await self._redis.hmget(_LARGE, [row.text for row in rows])
        return [_text(value) for value in cast("list[bytes | None]", values)]

    async def write(self, edits: Edits, *, expected: int, revision: int) -> bool:
        flat: list[str | int] = [expected, revision, REMEMBERED_MS]
        for row, value in edits.items():
            flat += [4 if row.kind in LARGE else 2, row.text, "del" if value is None else "set", value or ""]
        return bool(await self._writes.run(self._write, [REVISION, _ROWS, _CHANGED, _LARGE], flat))

    def turn(self) -> AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    async def aclose(self) -> None:
        pass


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
