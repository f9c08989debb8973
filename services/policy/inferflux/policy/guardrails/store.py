"""Where sets of rules are kept: in Redis.

    inferflux:{guardrails}:revision    the version of the latest change
    inferflux:{guardrails}:versions    hash    <tenant>/<model> -> version
    inferflux:{guardrails}:summaries   hash    <tenant>/<model> -> GuardrailsSummary
    inferflux:{guardrails}:rules       hash    <tenant>/<model> -> GuardrailRules

A version is the time of its change in ms, or one more than the last. So no two changes have the same version,
also after a store has lost its data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from inferflux.common.errors import Aborted, NotFound, ResourceExhausted
from inferflux.common.guardrails.cache import SetKey
from inferflux.policy.guarded import StoreGuard
from inferflux.v1 import guardrails_pb2

if TYPE_CHECKING:
    from redis.asyncio import Redis

MAX_SETS = 1000

Rules = guardrails_pb2.GuardrailRules
Summary = guardrails_pb2.GuardrailsSummary

_PREFIX = "inferflux:{guardrails}:"
_REVISION, _VERSIONS, _SUMMARIES, _RULES = (
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
# Returns the new version, `changed` or `full`.
_PUT = (
    _NEXT
    + """
if ARGV[2] ~= '0' and ARGV[2] ~= was then return 'changed' end
if not was and redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[3]) then return 'full' end
local version = next_version()
redis.call('HSET', KEYS[2], ARGV[1], version)
redis.call('HSET', KEYS[3], ARGV[1], ARGV[4])
redis.call('HSET', KEYS[4], ARGV[1], ARGV[5])
return version
"""
)

# KEYS: as above. ARGV: name, version before (0: any). Returns the new revision, `changed` or `unknown`.
_DELETE = (
    _NEXT
    + """
if not was then return 'unknown' end
if ARGV[2] ~= '0' and ARGV[2] ~= was then return 'changed' end
for i = 2, 4 do redis.call('HDEL', KEYS[i], ARGV[1]) end
return next_version()
"""
)


class Name(NamedTuple):
    """Whose requests a set is for; "" stands for every tenant, and for every model."""

    tenant: str
    model: str

    @property
    def text(self) -> str:
        return f"{self.tenant}/{self.model}"


class _Told(Enum):
    """What a script says instead of a version."""

    CHANGED = b"changed"
    FULL = b"full"
    UNKNOWN = b"unknown"


@dataclass(frozen=True, slots=True)
class Index:
    """Which sets there are, by what changes seldom.

    Attributes:
        revision: rises with each change of any set; "" for an index that was not read yet.
        with_texts: tenants that have sets for which the text of a prompt is needed; "" is every tenant.
        with_streams: tenants that have sets for answers.
    """

    revision: str = ""
    sets: Mapping[Name, Summary] = field(default_factory=dict)
    with_texts: frozenset[str] = frozenset()
    with_streams: frozenset[str] = frozenset()

    @classmethod
    def of(cls, revision: str, sets: Mapping[Name, Summary]) -> Index:
        texts = (n.tenant for n, s in sets.items() if s.n_blocked or s.n_patterns or s.max_characters)
        streams = (name.tenant for name, summary in sets.items() if summary.guards_stream)
        return cls(revision, sets, frozenset(texts), frozenset(streams))

    def holding(self, tenant: str, model: str) -> list[SetKey]:
        """The sets that hold for requests of a tenant and a model, the most general one first."""
        names = (Name("", ""), Name("", model), Name(tenant, ""), Name(tenant, model))
        return [self._key(name) for name in dict.fromkeys(names) if name in self.sets]

    def for_streams(self, tenant: str, model: str) -> list[SetKey]:
        """Those that answers are held to; with "" as the model, those of all models."""
        if model:
            keys = self.holding(tenant, model)
        else:
            keys = [self._key(name) for name in sorted(self.sets) if name.tenant in ("", tenant)]
        return [key for key in keys if self.sets[Name(key.tenant, key.model)].guards_stream]

    def _key(self, name: Name) -> SetKey:
        return SetKey(name.tenant, name.model, self.sets[name].version)


class GuardrailStore(Protocol):
    """Sets of rules by name. What one process writes, others read with their next call. Every method raises
    Unavailable when the store does not answer in time.
    """

    async def index(self, known: Index) -> Index:
        """The index of now: `known` itself if nothing has changed since it was read."""
        ...

    async def rules(self, names: Sequence[Name]) -> list[Rules | None]: ...

    async def put(self, name: Name, summary: Summary, rules: Rules) -> int:
        """Write a set, and return its new version.

        Args:
            summary: with version 0, whatever is stored is replaced.

        Raises:
            Aborted: the stored one has another version than the summary says.
            ResourceExhausted: there are as many sets as there may be.
        """
        ...

    async def delete(self, name: Name, *, version: int) -> None:
        """Remove a set.

        Args:
            version: 0: whichever it has.

        Raises:
            NotFound: there is none of this name.
            Aborted: it has another version.
        """
        ...


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
        sets = {_name(text): _summary(data, versions[text]) for text, data in summaries.items()}
        return Index.of(revision.decode(), sets)

    async def rules(self, names: Sequence[Name]) -> list[Rules | None]:
        if not names:
            return []
        async with self._guard.limit():
            found = await self._redis.hmget(_RULES, [name.text for name in names])
        rows = cast("list[bytes | None]", found)
        return [Rules.FromString(row) if row is not None else None for row in rows]

    async def put(self, name: Name, summary: Summary, rules: Rules) -> int:
        texts: list[str | int | bytes] = [name.text, summary.version, MAX_SETS]
        texts += [summary.SerializeToString(), rules.SerializeToString()]
        async with self._guard.limit():
            answer = await self._put([_REVISION, _VERSIONS, _SUMMARIES, _RULES], texts)
        return _version(cast("bytes", answer), name)

    async def delete(self, name: Name, *, version: int) -> None:
        async with self._guard.limit():
            answer = await self._delete([_REVISION, _VERSIONS, _SUMMARIES, _RULES], [name.text, version])
        _version(cast("bytes", answer), name)


def _pairs(row: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(row[::2], row[1::2], strict=True))


def _name(text: bytes) -> Name:
    tenant, _, model = text.decode().partition("/")
    return Name(tenant, model)


def _summary(data: bytes, version: bytes) -> Summary:
    summary = Summary.FromString(data)
    summary.version = int(version)
    return summary


def _version(answer: bytes, name: Name) -> int:
    if answer == _Told.CHANGED.value:
        message = f"the guardrails {name.text} were changed meanwhile: read them again"
        raise Aborted(message, reason="VERSION_MISMATCH")
    if answer == _Told.FULL.value:
        message = f"there are {MAX_SETS} sets of guardrails, and no more can be made"
        raise ResourceExhausted(message, reason="TOO_MANY_GUARDRAILS", retry_delay_s=None)
    if answer == _Told.UNKNOWN.value:
        raise NotFound(f"there are no guardrails {name.text}", reason="UNKNOWN_GUARDRAILS")
    return int(answer)
