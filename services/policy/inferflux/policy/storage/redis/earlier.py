"""The layout that policy had in Redis before the table: taken over once, and removed.

inferflux:{keys}:key:<sha256>     hash    one API key
inferflux:{keys}:index            hash    key id -> sha256 of its present secret
inferflux:{keys}:roles            hash    name -> role, as JSON
inferflux:{keys}:bootstrapped     set     marks of `KeyStore.bootstrap`
inferflux:{limits}:rules          hash    subject -> limits, as JSON: {limits: {NAME: n}, version: n}
inferflux:{guardrails}:versions   hash    <tenant>/<model> -> version
inferflux:{guardrails}:summaries  hash    <tenant>/<model> -> GuardrailsSummary
inferflux:{guardrails}:rules      hash    <tenant>/<model> -> GuardrailRules
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from inferflux.common.contract.errors import Unavailable
from inferflux.common.process import logs
from inferflux.policy.decide.guardrails.store import Name, Rules, Summary
from inferflux.policy.storage.guarded import StoreGuard
from inferflux.policy.storage.table import KEY, LARGE, LIMIT, MARK, ROLE, TAKEN, Changes, Edits, Row
from inferflux.policy.storage.tables.rows import moved_row, rules_row, summary_row

from .table import LARGE_ROWS, RedisTable

if TYPE_CHECKING:
    from redis.asyncio import Redis

RECORD = "inferflux:{keys}:key:"
INDEX, ROLES, BOOTSTRAPPED = (f"inferflux:{{keys}}:{name}" for name in ("index", "roles", "bootstrapped"))
LIMITS = "inferflux:{limits}:rules"
_REVISION, VERSIONS, SUMMARIES, RULES = (
    f"inferflux:{{guardrails}}:{name}" for name in ("revision", "versions", "summaries", "rules")
)
# The index names records, so it is removed last.
_NAMES = (ROLES, BOOTSTRAPPED, LIMITS, _REVISION, VERSIONS, SUMMARIES, RULES, INDEX)
_BATCH = 256
_RETRY_S = 5.0
# Longest wait for one answer. All rows are written in one step.
_TAKE_OVER_S = 30.0

# In the table from the write that takes the layout over until the layout is removed.
_TAKEN = Row(TAKEN, "earlier layout")

# KEYS: large rows. ARGV: name of a row. Returns 1 if it is there: then it is written once more, so that a
# replica that confirms this has what was written before.
_CONFIRM = """
local value = redis.call('HGET', KEYS[1], ARGV[1])
if not value then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], value)
return 1
"""

log = logs.get()


class RedisTableOverEarlier(RedisTable):
    """A `RedisTable` that begins with the rows of an `EarlierLayout`, and removes that once it has them.

    Args:
        is_sealed: a `SealedTable` encrypts the rows and writes them; else they are written as they are.
    """

    def __init__(self, redis: Redis, guard: StoreGuard, *, is_sealed: bool) -> None:
        super().__init__(redis, guard)
        patient = StoreGuard(timeout_s=_TAKE_OVER_S)
        self._earlier = EarlierLayout(redis, patient)
        self._patient = RedisTable(redis, patient)
        self._is_sealed = is_sealed
        self._confirm = redis.register_script(_CONFIRM)
        # Rows of the earlier layout that the table does not have yet.
        self._found: Edits = {}
        self._has_removed = False
        self._remove_at = 0.0

    async def changes(self, since: int) -> Changes:
        changes = await super().changes(since)
        if changes.revision:
            self._found = {}
            await self._remove_taken()
            return changes
        self._found = await self._earlier.rows()
        if not self._found:
            return changes
        self._has_removed = False
        if self._is_sealed:
            small = {row: value for row, value in self._found.items() if row.kind not in LARGE}
            return Changes(0, small, is_whole=True)
        if await self.write(self._found, expected=0, revision=1):
            log.info("policy's earlier layout in Redis was taken over", n_rows=len(self._found))
        return await self.changes(since)

    async def large(self, rows: Sequence[Row]) -> list[str | None]:
        return [self._found.get(row) for row in rows] if self._found else await super().large(rows)

    async def write(self, edits: Edits, *, expected: int, revision: int) -> bool:
        if not self._found:
            return await super().write(edits, expected=expected, revision=revision)
        return await self._patient.write({**edits, _TAKEN: "{}"}, expected=expected, revision=revision)

    async def _remove_taken(self) -> None:
        """Remove the earlier layout where the table was made of it, and a replica has the table too."""
        if self._has_removed or time.monotonic() < self._remove_at:
            return
        try:
            if await self._replicated(self._confirm, [LARGE_ROWS], [_TAKEN.text]):
                await self._earlier.remove()
                async with self._guard.limit():
                    await self._redis.hdel(LARGE_ROWS, _TAKEN.text)
            elif names := await self._earlier.names():
                log.warning("policy does not read these names in Redis: it has another layout", names=names)
            self._has_removed = True
        except Unavailable as error:
            self._remove_at = time.monotonic() + _RETRY_S
            log.warning("policy's earlier layout in Redis is not removed yet", why=error.in_full)


class EarlierLayout:
    """Every method raises Unavailable when Redis does not answer in time."""

    def __init__(self, redis: Redis, guard: StoreGuard) -> None:
        self._redis = redis
        self._guard = guard

    async def rows(self) -> dict[Row, str]:
        """All of it, large rows too. What another process removes meanwhile may be missing."""
        rows = await self._keys()
        for kind, name in ((ROLE, ROLES), (LIMIT, LIMITS)):
            rows |= {Row(kind, of.decode()): value.decode() for of, value in (await self._hash(name)).items()}
        async with self._guard.limit():
            marks = cast("set[bytes]", await self._redis.smembers(BOOTSTRAPPED))
        rows |= {Row(MARK, mark.decode()): "{}" for mark in marks}
        versions, summaries, rules = [await self._hash(name) for name in (VERSIONS, SUMMARIES, RULES)]
        for text in versions.keys() & summaries.keys() & rules.keys():
            of = Name.parse(text.decode())
            summary = Summary.FromString(summaries[text])
            summary.version = int(versions[text])
            rows |= dict([summary_row(of, summary), rules_row(of, Rules.FromString(rules[text]))])
        return rows

    async def names(self) -> list[str]:
        """Names of its hashes and sets that are there, but for records."""
        return [name for name in _NAMES if await self._exists(name)]

    async def remove(self) -> None:
        digests = [row.name for row in await self._keys()]
        for names in [*_batched([RECORD + digest for digest in digests]), *([name] for name in _NAMES)]:
            async with self._guard.limit():
                await self._redis.delete(*names)
        log.info("policy's earlier layout in Redis was removed", n_keys=len(digests))

    async def _keys(self) -> dict[Row, str]:
        rows: dict[Row, str] = {}
        index = await self._hash(INDEX)
        for digests in _batched([digest.decode() for digest in index.values()]):
            for digest, fields in zip(digests, await self._records(digests), strict=True):
                if fields:
                    rows |= _key_rows(digest, fields)
        return rows

    async def _exists(self, name: str) -> bool:
        async with self._guard.limit():
            return bool(await self._redis.exists(name))

    async def _hash(self, name: str) -> dict[bytes, bytes]:
        async with self._guard.limit():
            return cast("dict[bytes, bytes]", await self._redis.hgetall(name))

    async def _records(self, digests: Sequence[str]) -> list[dict[bytes, bytes]]:
        async with self._guard.limit():
            pipeline = self._redis.pipeline(transaction=False)
            for digest in digests:
                pipeline.hgetall(RECORD + digest)
            return cast("list[dict[bytes, bytes]]", await pipeline.execute())


def _key_rows(digest: str, found: dict[bytes, bytes]) -> dict[Row, str]:
    """The row of a key, and that of its secret before a rotation."""
    fields = {name.decode(): value.decode() for name, value in found.items()}
    rows = {Row(KEY, digest): json.dumps(fields)}
    if before := fields.get("previous_digest"):
        rows |= dict([moved_row(before, to=digest, until_unix_ms=int(fields.get("previous_until", "0")))])
    return rows


def _batched(items: Sequence[str]) -> Iterator[Sequence[str]]:
    return (items[i : i + _BATCH] for i in range(0, len(items), _BATCH))
