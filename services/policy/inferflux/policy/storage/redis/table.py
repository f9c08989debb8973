"""A table in Redis.

inferflux:{policy}:revision    of all of it
inferflux:{policy}:rows        hash    <kind> <name> -> value
inferflux:{policy}:large       hash    the same of rows that may be large
inferflux:{policy}:changed     zset    <kind> <name> of what was changed or removed lately, by revision
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, cast

from inferflux.common.contract.errors import Unavailable
from inferflux.common.redis.store import has_replicas
from inferflux.policy.storage.guarded import StoreGuard
from inferflux.policy.storage.table import LARGE, REMEMBERED_MS, Changes, Edits, Row

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.commands.core import AsyncScript

_PREFIX = "inferflux:{policy}:"
REVISION = f"{_PREFIX}revision"
ROWS, LARGE_ROWS, _CHANGED = (f"{_PREFIX}{name}" for name in ("rows", "large", "changed"))

# KEYS: revision, rows, changed. ARGV: a revision, how long changes are remembered (ms). Returns the revision
# of now, with names and values of what has changed since; alone where that is too much, or not known.
_READ = """
local revision, since = tonumber(redis.call('GET', KEYS[1]) or '0'), tonumber(ARGV[1])
local answer = {string.format('%.0f', revision)}
if since == revision then return {answer[1], {}, {}} end
if since > revision or since == 0 or since <= revision - tonumber(ARGV[2]) then return answer end
local names = redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. ARGV[1], '+inf', 'LIMIT', 0, 1000)
if #names == 0 or #names == 1000 then return answer end
return {answer[1], names, redis.call('HMGET', KEYS[2], unpack(names))}
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


# Rows of one answer, about; and how often all are read again because too much has changed meanwhile.
_PART = 1000
_ATTEMPTS = 5
# Of the time that one answer may take: what the wait for a replica may.
_PART_OF_LIMIT = 0.6


class RedisTable:
    """A `Table`."""

    def __init__(self, redis: Redis, guard: StoreGuard) -> None:
        self._redis = redis
        self._guard = guard
        self._read = redis.register_script(_READ)
        self._write = redis.register_script(_WRITE)

    async def open(self) -> None:
        """It can be used whether Redis answers or not: calls are refused while it does not."""

    async def changes(self, since: int) -> Changes:
        # One key: it can be read while its slot of a cluster moves, when scripts of several keys cannot.
        if await self._revision() == since:
            return Changes(since, {})
        return await self._changed(since) or await self._whole()

    async def _revision(self) -> int:
        async with self._guard.limit():
            return int(await self._redis.get(REVISION) or 0)

    async def _changed(self, since: int) -> Changes | None:
        """The rows that have changed; None where all have to be read."""
        async with self._guard.limit():
            answer = await self._read([REVISION, ROWS, _CHANGED], [since, REMEMBERED_MS])
        revision, *lists = cast("list[bytes]", answer)
        if not lists:
            return None
        names, values = cast("list[list[bytes]]", lists)
        return Changes(int(revision), {_row(name): _text(v) for name, v in zip(names, values, strict=True)})

    async def _whole(self) -> Changes:
        """All rows: in parts that Redis answers in time, then what has changed meanwhile."""
        for _ in range(_ATTEMPTS):
            revision = await self._revision()
            if not revision:
                return Changes(0, {}, is_whole=True)
            rows: dict[Row, str | None] = {}
            cursor = -1
            while cursor:
                async with self._guard.limit():
                    cursor, found = await self._redis.hscan(ROWS, max(cursor, 0), count=_PART)
                pairs = cast("dict[bytes, bytes]", found)
                rows |= {_row(name): value.decode() for name, value in pairs.items()}
            if (later := await self._changed(revision)) is not None:
                rows |= later.rows
                there = {row: value for row, value in rows.items() if value is not None}
                return Changes(later.revision, there, is_whole=True)
        raise Unavailable("others change the policy store all the time: try again", reason="STORE_BUSY")

    async def large(self, rows: Sequence[Row]) -> list[str | None]:
        if not rows:
            return []
        async with self._guard.limit():
            values = await self._redis.hmget(LARGE_ROWS, [row.text for row in rows])
        return [_text(value) for value in cast("list[bytes | None]", values)]

    async def write(self, edits: Edits, *, expected: int, revision: int) -> bool:
        flat: list[str | int] = [expected, revision, REMEMBERED_MS]
        for row, value in edits.items():
            flat += [4 if row.kind in LARGE else 2, row.text, "del" if value is None else "set", value or ""]
        return bool(await self._replicated(self._write, [REVISION, ROWS, _CHANGED, LARGE_ROWS], flat))

    async def _replicated(
        self, script: AsyncScript, keys: Sequence[str], arguments: Sequence[str | int]
    ) -> Any:
        """Run a script that writes. Where a replica may become the primary, one must have what was written.

        Returns:
            Its result; nothing was written where that is 0.

        Raises:
            Unavailable: Redis did not answer, or no replica did (NOT_REPLICATED): then it was written.
        """
        async with self._guard.limit():
            if not await has_replicas(self._redis, keys[0]):
                return await script(list(keys), list(arguments))
            # WAIT is about what its own connection has written.
            pipeline = self._redis.pipeline(transaction=False)
            await script(list(keys), list(arguments), client=pipeline)
            pipeline.execute_command("WAIT", 1, round(1000 * _PART_OF_LIMIT * self._guard.timeout_s))
            result, n_replicas = await pipeline.execute()
        if result and not n_replicas:
            message = (
                "the change was made, but no replica of Redis has confirmed it: "
                "if the primary is lost now, it may be undone; look again later"
            )
            raise Unavailable(message, reason="NOT_REPLICATED", retry_delay_s=None)
        return result

    def turn(self) -> AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    async def aclose(self) -> None:
        pass


def _row(name: bytes) -> Row:
    return Row.parse(name.decode())


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
