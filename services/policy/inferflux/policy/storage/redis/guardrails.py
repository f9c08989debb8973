"""Sets of guardrails in Redis.

inferflux:{guardrails}:revision    the version of the latest change
inferflux:{guardrails}:versions    hash    <tenant>/<model> -> version
inferflux:{guardrails}:summaries   hash    <tenant>/<model> -> GuardrailsSummary
inferflux:{guardrails}:rules       hash    <tenant>/<model> -> GuardrailRules
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, cast

from inferflux.policy.decide.guardrails.store import (
    MAX_SETS,
    Index,
    Name,
    Rules,
    Summary,
    Versions,
    changed,
    too_many,
    unknown,
)
from inferflux.policy.storage.guarded import StoreGuard

if TYPE_CHECKING:
    from redis.asyncio import Redis

_PREFIX = "inferflux:{guardrails}:"
_REVISION, _VERSIONS, _SUMMARIES, _RULES = KEYS = tuple(
    f"{_PREFIX}{name}" for name in ("revision", "versions", "summaries", "rules")
)

# KEYS: revision, versions, summaries. ARGV: the revision that is known. Returns the revision; where it is
# another one, also all versions and summaries.
_READ = """
local revision = redis.call('GET', KEYS[1]) or '0'
if revision == ARGV[1] then return {revision} end
return {revision, redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[3])}
"""

_NEXT = """
local function next_version()
  local at = redis.call('TIME')
  local now = at[1] * 1000 + math.floor(at[2] / 1000)
  local version = string.format('%.0f', math.max(now, (redis.call('GET', KEYS[1]) or 0) + 1))
  redis.call('SET', KEYS[1], version)
  return version
end
local was = redis.call('HGET', KEYS[2], ARGV[1])
"""

# KEYS: revision, versions, summaries, rules. ARGV: name, version before (0: any), most sets, summary, rules.
# Returns the versions before (0: none) and now, or `changed` or `full`.
_PUT = (
    _NEXT
    + """
if ARGV[2] ~= '0' and ARGV[2] ~= was then return 'changed' end
if not was and redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[3]) then return 'full' end
local version = next_version()
redis.call('HSET', KEYS[2], ARGV[1], version)
redis.call('HSET', KEYS[3], ARGV[1], ARGV[4])
redis.call('HSET', KEYS[4], ARGV[1], ARGV[5])
return {was or '0', version}
"""
)

# KEYS: as above. ARGV: name, version before (0: any). Returns the versions before and now, or
# `changed` or `unknown`.
_DELETE = (
    _NEXT
    + """
if not was then return 'unknown' end
if ARGV[2] ~= '0' and ARGV[2] ~= was then return 'changed' end
for i = 2, 4 do redis.call('HDEL', KEYS[i], ARGV[1]) end
return {was, next_version()}
"""
)


class _Told(Enum):
    """What a script says instead of a version."""

    CHANGED = b"changed"
    FULL = b"full"
    UNKNOWN = b"unknown"


class RedisGuardrails:
    """A `GuardrailStore`."""

    def __init__(self, redis: Redis, guard: StoreGuard) -> None:
        self._redis = redis
        self._guard = guard
        self._read = redis.register_script(_READ)
        self._put = redis.register_script(_PUT)
        self._delete = redis.register_script(_DELETE)

    async def index(self, known: Index) -> Index:
        async with self._guard.limit():
            answer = await self._read([_REVISION, _VERSIONS, _SUMMARIES], [known.revision])
        revision, *rows = cast("list[bytes]", answer)
        if not rows:
            return known
        versions, summaries = (_pairs(cast("list[bytes]", row)) for row in rows)
        sets = {Name.parse(text.decode()): _summary(data, versions[text]) for text, data in summaries.items()}
        return Index.of(revision.decode(), sets)

    async def rules(self, names: Sequence[Name]) -> list[Rules | None]:
        if not names:
            return []
        async with self._guard.limit():
            found = await self._redis.hmget(_RULES, [name.text for name in names])
        rows = cast("list[bytes | None]", found)
        return [Rules.FromString(row) if row is not None else None for row in rows]

    async def put(self, name: Name, summary: Summary, rules: Rules) -> Versions:
        texts: list[str | int | bytes] = [name.text, summary.version, MAX_SETS]
        texts += [summary.SerializeToString(), rules.SerializeToString()]
        async with self._guard.limit():
            answer = await self._put([_REVISION, _VERSIONS, _SUMMARIES, _RULES], texts)
        return _versions(cast("bytes | list[bytes]", answer), name)

    async def delete(self, name: Name, *, version: int) -> int:
        async with self._guard.limit():
            answer = await self._delete([_REVISION, _VERSIONS, _SUMMARIES, _RULES], [name.text, version])
        return _versions(cast("bytes | list[bytes]", answer), name).before


def _pairs(row: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(row[::2], row[1::2], strict=True))


def _summary(data: bytes, version: bytes) -> Summary:
    summary = Summary.FromString(data)
    summary.version = int(version)
    return summary


def _versions(answer: bytes | list[bytes], name: Name) -> Versions:
    if isinstance(answer, list):
        before, now = map(int, answer)
        return Versions(before, now)
    if answer == _Told.CHANGED.value:
        raise changed(name)
    if answer == _Told.FULL.value:
        raise too_many()
    raise unknown(name)
