"""What policy had in Redis before a passphrase was set: read once, encrypted, removed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from inferflux.common.process import logs
from inferflux.policy.decide.guardrails.store import Index, Name
from inferflux.policy.storage.guarded import StoreGuard
from inferflux.policy.storage.table import MARK, Changes, Edits, Row
from inferflux.policy.storage.tables.rows import (
    key_row,
    limit_row,
    moved_row,
    role_row,
    rules_row,
    summary_row,
)

from .guardrails import KEYS as GUARDRAIL_KEYS
from .keys import BOOTSTRAPPED, INDEX, KEY, ROLES
from .limits import RULES
from .storage import RedisStorage
from .table import RedisTable

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = logs.get()


class RedisTableOverClear(RedisTable):
    """A `RedisTable` that begins with what a `RedisStorage` has, and removes that once the table has it."""

    def __init__(self, redis: Redis, guard: StoreGuard) -> None:
        super().__init__(redis, guard)
        self._clear = _Clear(redis, guard)
        self._has_clear = True

    async def changes(self, since: int) -> Changes:
        changes = await super().changes(since)
        if self._has_clear and changes.revision == 0:
            return Changes(0, await self._clear.rows(), is_whole=True)
        if self._has_clear:
            await self._clear.remove()
            self._has_clear = False
        return changes

    async def large(self, rows: Sequence[Row]) -> list[str | None]:
        return await (self._clear.large(rows) if self._has_clear else super().large(rows))


class _Clear:
    """The values of a `RedisStorage`, as rows."""

    def __init__(self, redis: Redis, guard: StoreGuard) -> None:
        self._redis = redis
        self._guard = guard
        self._storage = RedisStorage(redis, guard)

    async def rows(self) -> Edits:
        keys, rates = self._storage.keys, self._storage.rate_limits
        rows: dict[Row, str | None] = {}
        for record in await keys.all_keys():
            rows |= dict([key_row(record)])
            if record.previous_digest and record.previous_until_unix_ms > time.time() * 1000:
                until = record.previous_until_unix_ms
                rows |= dict([moved_row(record.previous_digest, to=record.digest, until_unix_ms=until)])
        rows |= dict(role_row(role) for role in await keys.all_roles() if not role.is_builtin)
        rows |= dict(limit_row(rule) for rule in await rates.rules())
        sets = (await self._storage.guardrails.index(Index())).sets
        rows |= dict(summary_row(name, summary) for name, summary in sets.items())
        async with self._guard.limit():
            marks = cast("set[bytes]", await self._redis.smembers(BOOTSTRAPPED))
        return rows | {Row(MARK, mark.decode()): "{}" for mark in marks}

    async def large(self, rows: Sequence[Row]) -> list[str | None]:
        names = [Name.parse(row.name) for row in rows]
        found = await self._storage.guardrails.rules(names)
        return [r and rules_row(n, r)[1] for n, r in zip(names, found, strict=True)]

    async def remove(self) -> None:
        async with self._guard.limit():
            index = cast("dict[bytes, bytes]", await self._redis.hgetall(INDEX))
        records = await self._storage.keys.all_keys()
        digests = {d.decode() for d in index.values()} | {r.previous_digest for r in records} - {""}
        names = [*(KEY + digest for digest in sorted(digests)), ROLES, BOOTSTRAPPED, RULES, *GUARDRAIL_KEYS]
        n_removed = 0
        # Each name by itself: a cluster has them in different slots. The index names others, so it is last.
        for name in [*names, INDEX]:
            async with self._guard.limit():
                n_removed += await self._redis.delete(name)
        if n_removed:
            log.info("what policy had in Redis in clear was removed", n_names=n_removed)
