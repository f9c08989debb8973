"""Answers in Redis, within a budget of each tenant and one of all tenants.

    inferflux:{answers}:answer:<name>     string that expires: a sealed answer
    inferflux:{answers}:entries           hash: name -> bytes, tenant and model
    inferflux:{answers}:used              sorted set: name, by when it expires in microseconds
    inferflux:{answers}:used:<tenant>     the same of one tenant's
    inferflux:{answers}:bytes             sorted set: `tenant/<tenant>` and `total`, by bytes

A hit puts an answer's expiry off, so what expires first was used least recently: it is evicted first. A
tenant beyond its budget evicts its own answers. Beyond the budget of all, the tenant with the most bytes
loses its. So no tenant can push out the few answers of another.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from inferflux.common.redis.store import WHOLE_SLOT

if TYPE_CHECKING:
    from redis.asyncio import Redis

PREFIX = "inferflux:{answers}:"
_ENTRIES, _WHOLE = f"{PREFIX}entries", f"{PREFIX}{WHOLE_SLOT}"
# What an answer takes beside its own bytes: its name, five times, and Redis's own bookkeeping.
OVERHEAD_BYTES = 512
# Answers that one round trip looks at to clear them.
_CLEARED_AT_ONCE = 500

# Defines `parts`, of an entry, for a script: bytes, tenant and model. All are nil if it makes no sense: no
# answer is as large as that, and sums with it would be infinite.
_PARTS = """
local function parts(entry)
  local size, its_tenant, its_model = string.match(entry, '^(%d+) ([^ ]*) ?(.*)')
  if size and #size <= 12 then return tonumber(size), its_tenant, its_model end
end
"""

# KEYS: the answer. ARGV: prefix, name, milliseconds that it lives from now on.
_FIND = """
local prefix, name, lifetime_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local answer = redis.pcall('GET', KEYS[1])
if type(answer) ~= 'string' then return false end
local entry = redis.pcall('HGET', prefix .. 'entries', name)
local tenant = type(entry) == 'string' and string.match(entry, '^%d+ ([^ ]*)')
if tenant then
  local time = redis.call('TIME')
  local expires_us = time[1] * 1000000 + time[2] + lifetime_ms * 1000
  redis.call('PEXPIRE', KEYS[1], lifetime_ms)
  redis.pcall('ZADD', prefix .. 'used', 'XX', expires_us, name)
  redis.pcall('ZADD', prefix .. 'used:' .. tenant, 'XX', expires_us, name)
end
return answer
"""

# Defines `remove`, of an answer and all that belongs to it, for a script that has `prefix`. Accounts that
# something else has written to are begun anew: otherwise no answer could be kept or cleared any more.
_REMOVE = f"""
{_PARTS}
local entries, used, bytes = prefix .. 'entries', prefix .. 'used', prefix .. 'bytes'
local function begin_anew_unless(kind, key)
  if redis.call('TYPE', key).ok ~= kind then redis.call('UNLINK', key) end
end
begin_anew_unless('hash', entries)
begin_anew_unless('zset', used)
begin_anew_unless('zset', bytes)
local function add(member, more)
  if tonumber(redis.call('ZINCRBY', bytes, more, member)) <= 0 then redis.call('ZREM', bytes, member) end
end
local function remove(gone)
  redis.call('UNLINK', prefix .. 'answer:' .. gone)
  redis.call('ZREM', used, gone)
  local entry = redis.call('HGET', entries, gone)
  if not entry then return end
  redis.call('HDEL', entries, gone)
  local its_size, its_tenant = parts(entry)
  if not its_size then return end
  begin_anew_unless('zset', used .. ':' .. its_tenant)
  redis.call('ZREM', used .. ':' .. its_tenant, gone)
  add('tenant/' .. its_tenant, -its_size)
  add('total', -its_size)
end
"""

# KEYS: the answer, WHOLE_SLOT. ARGV: prefix, name, milliseconds that it lives, tenant, answer, its bytes with
# all that belongs to it, budgets of a tenant and of all, model. Returns the bytes of all, and how many
# answers were evicted.
_KEEP = f"""
local prefix, name, lifetime_ms, tenant = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local size, tenant_budget, budget, model = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
{_REMOVE}
begin_anew_unless('zset', used .. ':' .. tenant)
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local expires_us = now_us + lifetime_ms * 1000

local function bytes_of(member) return tonumber(redis.call('ZSCORE', bytes, member) or '0') end
local function evict_of(its_tenant)
  begin_anew_unless('zset', used .. ':' .. its_tenant)
  local oldest = redis.call('ZPOPMIN', used .. ':' .. its_tenant)[1]
  if oldest then remove(oldest) return 1 end
  redis.call('ZREM', bytes, 'tenant/' .. its_tenant)
  return 0
end

remove(name)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', used, '-inf', now_us, 'LIMIT', 0, 100)) do remove(gone) end
local evicted, left = 0, 1000
while bytes_of('tenant/' .. tenant) + size > tenant_budget and left > 0 do
  evicted, left = evicted + evict_of(tenant), left - 1
end
while bytes_of('total') + size > budget and left > 0 do
  local largest = redis.call('ZREVRANGE', bytes, 0, 1)
  local its = largest[1]
  if its == 'total' and largest[2] then its = largest[2] end
  if its == 'total' then
    redis.call('ZREM', bytes, its)
  else
    evicted = evicted + evict_of(string.sub(its, 8))
  end
  left = left - 1
end
if bytes_of('tenant/' .. tenant) + size <= tenant_budget and bytes_of('total') + size <= budget then
  redis.call('SET', KEYS[1], ARGV[5], 'PX', lifetime_ms)
  redis.call('HSET', entries, name, size .. ' ' .. tenant .. ' ' .. model)
  redis.call('ZADD', used, expires_us, name)
  redis.call('ZADD', used .. ':' .. tenant, expires_us, name)
  add('tenant/' .. tenant, size)
  add('total', size)
end
return {{bytes_of('total'), evicted}}
"""

# KEYS: hash of entries, WHOLE_SLOT. ARGV: prefix, cursor, entries to look at, tenant, model; the last two may
# be empty for any. Returns the cursor of the next call, or '0', how many answers were removed, and their
# bytes.
_CLEAR = f"""
local prefix, cursor, tenant, model = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
{_REMOVE}
local found = redis.call('HSCAN', entries, cursor, 'COUNT', ARGV[3])
local removed, freed = 0, 0
for at = 1, #found[2], 2 do
  local size, its_tenant, its_model = parts(found[2][at + 1])
  if not size or (tenant == '' or tenant == its_tenant)
    and (model == '' or its_model == '' or model == its_model) then
    removed, freed = removed + 1, freed + (size or 0)
    remove(found[2][at])
  end
end
return {{found[1], removed, freed}}
"""

# KEYS: hash of entries, and answers. ARGV: the name of each answer. Removes those that have no entry: it may
# have been evicted by Redis. Returns how many, and their bytes.
_CLEAR_UNKNOWN = """
local removed, freed = 0, 0
for at, name in ipairs(ARGV) do
  local key = KEYS[at + 1]
  if redis.call('HEXISTS', KEYS[1], name) == 0 then
    local size = redis.call('MEMORY', 'USAGE', key)
    if size then removed, freed = removed + 1, freed + size end
    redis.call('UNLINK', key)
  end
end
return {removed, freed}
"""


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Limits of what the answers may take.

    Attributes:
        max_bytes: of all tenants together.
        tenant_bytes: of one tenant.
        lifetime_s: after its last use, in seconds.
    """

    max_bytes: int
    tenant_bytes: int
    lifetime_s: float


@dataclass(frozen=True, slots=True)
class Kept:
    """The result of keeping one answer.

    Attributes:
        total_bytes: of all answers.
        evicted: answers that had to go for it.
    """

    total_bytes: int
    evicted: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """Answers that were removed, and their bytes as the budgets count them."""

    answers: int = 0
    n_bytes: int = 0


class AnswerStore:
    """Reads and writes sealed answers, in one round trip each. What Redis raises passes as it is."""

    def __init__(self, redis: Redis, limits: AnswerLimits) -> None:
        self._find = redis.register_script(_FIND)
        self._keep = redis.register_script(_KEEP)
        self._limits = limits

    async def find(self, name: bytes) -> bytes | None:
        """Return what is kept under a name. It lives as long again from now on."""
        answer = await self._find([_key(name)], [PREFIX, name.hex(), self._lifetime_ms])
        return answer if isinstance(answer, bytes) else None

    def has_room_for(self, n_bytes: int) -> bool:
        """Return whether an answer of this many bytes fits the budgets at all."""
        return n_bytes + OVERHEAD_BYTES <= min(self._limits.tenant_bytes, self._limits.max_bytes)

    async def keep(self, name: bytes, sealed: bytes, *, tenant: str, model: str = "") -> Kept:
        """Write an answer in place of what was kept under its name, and evict others for it as need be."""
        limits = self._limits
        size = len(sealed) + OVERHEAD_BYTES
        arguments: list[str | bytes | int] = [PREFIX, name.hex(), self._lifetime_ms, tenant, sealed, size]
        budgets = [limits.tenant_bytes, limits.max_bytes]
        answer = await self._keep([_key(name), _WHOLE], [*arguments, *budgets, model])
        total, evicted = cast("list[int]", answer)
        return Kept(total, evicted)

    @property
    def _lifetime_ms(self) -> int:
        return int(self._limits.lifetime_s * 1000)


async def clear(redis: Redis, *, tenant: str = "", model: str = "") -> Cleared:
    """Remove answers, a part of them in each round trip: others are not delayed. What Redis raises passes as
    it is. An answer goes as well if it is not known whose it is, or of which model.

    Args:
        tenant: only answers to its requests; empty: of every tenant.
        model: only answers of it; empty: of every model.
    """
    known, unknown = redis.register_script(_CLEAR), redis.register_script(_CLEAR_UNKNOWN)
    answers = n_bytes = 0
    cursor = b"0"
    while True:
        answer = await known([_ENTRIES, _WHOLE], [PREFIX, cursor, _CLEARED_AT_ONCE, tenant, model])
        cursor, removed, freed = cast("tuple[bytes, int, int]", answer)
        answers, n_bytes = answers + removed, n_bytes + freed
        if cursor == b"0":
            break
    async for keys in _names(redis):
        names = [key.rpartition(b":")[2] for key in keys]
        removed, freed = cast("list[int]", await unknown([_ENTRIES, *keys], names))
        answers, n_bytes = answers + removed, n_bytes + freed
    return Cleared(answers, n_bytes)


async def _names(redis: Redis) -> AsyncIterator[list[bytes]]:
    """The keys of all answers, some at a time; a cluster that moves them has them in several places."""
    keys: list[bytes] = []
    async for key in redis.scan_iter(match=f"{PREFIX}answer:*", count=_CLEARED_AT_ONCE):
        keys.append(cast("bytes", key))
        if len(keys) == _CLEARED_AT_ONCE:
            yield keys
            keys = []
    if keys:
        yield keys


def _key(name: bytes) -> str:
    return f"{PREFIX}answer:{name.hex()}"
