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

import asyncio
import json
import time
from collections.abc import Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from inferflux.common.contract.errors import Unavailable
from inferflux.common.process import logs
from inferflux.common.process.tasks import Background, cancel_all
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

_R = TypeVar("_R")

log = logs.get()


class RedisTableOverEarlier(RedisTable):
    """A `RedisTable` that begins with the rows of an `EarlierLayout`, and removes that once it has them.

    The first read, before there are calls, waits for all of it. Later ones wait for the time of one answer:
    the take-over then goes on beside them, and they raise Unavailable. They do not wait for the removal.

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
        # Rows of the earlier layout that a `SealedTable` is to write.
        self._found: Edits = {}
        self._limit_s: float | None = None
        # Readings and writings of the take-over that have not ended.
        self._steps: set[asyncio.Task[Any]] = set()
        self._background = Background()
        self._removal: asyncio.Task[Any] | None = None
        self._has_removed = False
        self._remove_at = 0.0

    async def changes(self, since: int) -> Changes:
        limit_s, self._limit_s = self._limit_s, self._guard.timeout_s
        is_found = await self._have_ended(limit_s) and self._found
        changes = await super().changes(since)
        if not (changes.revision or is_found):
            await self._in_time(self._take_over(), limit_s)
            changes = await super().changes(since)
        if changes.revision:
            self._found = {}
            self._begin_removal()
            if limit_s is None and self._removal is not None:
                await asyncio.wait([self._removal])
        elif self._found:
            small = {row: value for row, value in self._found.items() if row.kind not in LARGE}
            return Changes(0, small, is_whole=True)
        return changes

    async def large(self, rows: Sequence[Row]) -> list[str | None]:
        return [self._found.get(row) for row in rows] if self._found else await super().large(rows)

    async def write(self, edits: Edits, *, expected: int, revision: int) -> bool:
        if not self._found:
            return await super().write(edits, expected=expected, revision=revision)
        work = self._patient.write({**edits, _TAKEN: "{}"}, expected=expected, revision=revision)
        return await self._in_time(work, self._guard.timeout_s)

    async def aclose(self) -> None:
        await cancel_all(list(self._steps))
        await self._background.close()

    async def _take_over(self) -> None:
        found = await self._earlier.rows()
        if self._is_sealed:
            self._found = found
        if not found:
            return
        self._has_removed = False
        if not self._is_sealed and await self._patient.write({**found, _TAKEN: "{}"}, expected=0, revision=1):
            log.info("policy's earlier layout in Redis was taken over", n_rows=len(found))

    async def _in_time(self, work: Coroutine[Any, Any, _R], limit_s: float | None) -> _R:
        """The result of a step, which goes on where it takes longer.

        Raises:
            Unavailable: it takes longer, or Redis does not answer it.
        """
        step = asyncio.create_task(work)
        self._steps.add(step)
        step.add_done_callback(self._on_end)
        await self._have_ended(limit_s)
        return step.result()

    async def _have_ended(self, limit_s: float | None) -> bool:
        """True if there were steps, which have ended now; raises Unavailable if one has not."""
        if not self._steps:
            return False
        _, late = await asyncio.wait(self._steps, timeout=limit_s)
        if late:
            raise Unavailable("policy's earlier layout in Redis is being taken over", reason="STORE_TIMEOUT")
        return True

    def _on_end(self, step: asyncio.Task[Any]) -> None:
        """An error is for those who wait, if there still are any."""
        self._steps.discard(step)
        if not step.cancelled():
            step.exception()

    def _begin_removal(self) -> None:
        is_wanted = not self._has_removed and time.monotonic() >= self._remove_at
        if is_wanted and (self._removal is None or self._removal.done()):
            self._removal = self._background.start(self._remove_taken())

    async def _remove_taken(self) -> None:
        """Remove the earlier layout where the table was made of it, and a replica has the table too."""
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
