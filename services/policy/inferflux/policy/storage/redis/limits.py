"""Limits of subjects in Redis, where the limiter's script reads them.

inferflux:{limits}:rules    hash    subject -> limits, as JSON: {limits: {NAME: n}, version: n}
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING, cast

from inferflux.policy.decide.limits.rules import NAMES, RateLimit
from inferflux.policy.storage.guarded import StoreGuard

if TYPE_CHECKING:
    from redis.asyncio import Redis

RULES = "inferflux:{limits}:rules"

# KEYS: rules. ARGV: subject, limits as JSON, version before (0: any). Returns the new version; 0 where the
# stored limits have another one.
_SET = """
local was = redis.call('HGET', KEYS[1], ARGV[1])
local version = was and cjson.decode(was).version or 0
if ARGV[3] ~= '0' and version ~= tonumber(ARGV[3]) then return 0 end
local rule = {limits = cjson.decode(ARGV[2]), version = version + 1}
redis.call('HSET', KEYS[1], ARGV[1], cjson.encode(rule))
return version + 1
"""

# KEYS: rules. ARGV: subject, version (0: any). Returns 1 when there were limits of that version.
_DELETE = """
local was = redis.call('HGET', KEYS[1], ARGV[1])
if not was then return 0 end
if ARGV[2] ~= '0' and cjson.decode(was).version ~= tonumber(ARGV[2]) then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])
"""


class RedisRateLimits:
    """A `RateLimitStore`."""

    def __init__(self, redis: Redis, guard: StoreGuard) -> None:
        self._redis = redis
        self._guard = guard
        self._set = redis.register_script(_SET)
        self._delete = redis.register_script(_DELETE)

    async def rules(self) -> list[RateLimit]:
        async with self._guard.limit():
            rows = cast("dict[bytes, bytes]", await self._redis.hgetall(RULES))
        return sorted((_rule(s.decode(), row) for s, row in rows.items()), key=lambda rule: rule.subject)

    async def find_rules(self, subjects: Collection[str]) -> list[RateLimit]:
        names = list(subjects)
        async with self._guard.limit():
            rows = cast("list[bytes | None]", await self._redis.hmget(RULES, names))
        return [_rule(name, row) for name, row in zip(names, rows, strict=True) if row]

    async def limits_models(self) -> bool:
        return any(rule.subject.startswith("model:") for rule in await self.rules())

    async def set_rule(self, rule: RateLimit) -> RateLimit | None:
        async with self._guard.limit():
            version = await self._set([RULES], [rule.subject, json.dumps(dict(rule.limits)), rule.version])
        return RateLimit(rule.subject, rule.limits, int(version)) if version else None

    async def delete_rule(self, subject: str, *, version: int = 0) -> bool:
        async with self._guard.limit():
            return bool(await self._delete([RULES], [subject, version]))


def _rule(subject: str, row: bytes) -> RateLimit:
    stored = json.loads(row)
    limits = {name: int(stored["limits"][name]) for name in NAMES if name in stored["limits"]}
    return RateLimit(subject, limits, int(stored["version"]))
