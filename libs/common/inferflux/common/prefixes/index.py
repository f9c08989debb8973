"""Index of cached prefixes by worker, in Redis.

    inferflux:{prefixes}:blocks:<worker id>:<incarnation>   hash that expires: block's hash -> tier, last use,
                                                            usable blocks

Each worker writes its own key and no other's. A worker that starts again has another key, so what it had
before is never found again. A key whose worker stops renewing it expires as a whole.

Prefixes are chained: a worker that has a block has all before it. So the longest match on a worker is found
by a binary search over the blocks, and mostly by one or two probes: workers often have the same prefix.

Not every model's memory can share any part of a sequence. So a block says how much of a prompt that matches
this far can be used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha1
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, cast

from redis.exceptions import NoScriptError

from .hashes import HASH_BYTES

if TYPE_CHECKING:
    from redis.asyncio import Redis

# A worker renews its key with every heartbeat, once a second or so.
LIFETIME_S = 30
# Blocks in one command: a longer one would delay those of other processes.
BLOCKS_AT_ONCE = 1000

_PREFIX = "inferflux:{prefixes}:blocks:"
# The tier, seconds since the Unix epoch, and usable blocks.
_VALUE = Struct("<BII")

# KEYS: blocks of one worker each. ARGV: the hashes of a prompt, in one string; bytes of a hash.
# Returns for each worker how many blocks it has from the first on, and the value of the last of them.
_LONGEST = """
local hashes, size = ARGV[1], tonumber(ARGV[2])
local blocks = #hashes / size
local out, guess = {}, 1
for i, key in ipairs(KEYS) do
  local low, high, value = 0, blocks + 1, ''
  local function probe(depth)
    if depth <= low or depth >= high then return end
    local found = redis.pcall('HGET', key, string.sub(hashes, (depth - 1) * size + 1, depth * size))
    if type(found) == 'string' then low, value = depth, found else high = depth end
  end
  probe(1)
  probe(guess)
  probe(guess + 1)
  while high - low > 1 do probe(math.floor((low + high) / 2)) end
  if low > 0 then guess = low end
  out[2 * i - 1], out[2 * i] = low, value
end
return out
"""

# KEYS: blocks of the worker. ARGV: the version that is to be there, or '' to begin anew; the version then;
# milliseconds that the key lives; blocks that go, in one string; blocks that come, in one string of the hash
# and its value each; bytes of a hash, of a value. Returns 0 when another version is there: nothing was done.
_WRITE = """
local key, size, width = KEYS[1], tonumber(ARGV[6]), tonumber(ARGV[7])
if ARGV[1] == '' then
  redis.call('UNLINK', key)
elseif redis.pcall('HGET', key, 'version') ~= ARGV[1] then
  return 0
end
local args = {}
for at = 1, #ARGV[4], size do args[#args + 1] = string.sub(ARGV[4], at, at + size - 1) end
if #args > 0 then redis.call('HDEL', key, unpack(args)) end
args = {'version', ARGV[2]}
for at = 1, #ARGV[5], size + width do
  args[#args + 1] = string.sub(ARGV[5], at, at + size - 1)
  args[#args + 1] = string.sub(ARGV[5], at + size, at + size + width - 1)
end
redis.call('HSET', key, unpack(args))
redis.call('PEXPIRE', key, ARGV[3])
return 1
"""


class Tier(IntEnum):
    """Tier in which a worker has a prefix; lower is nearer."""

    DEVICE = 0
    HOST = 1
    DISK = 2


class Holder(NamedTuple):
    """A worker, and which of its lives."""

    worker_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Match:
    """Match of a prompt with a worker's cached prefixes.

    Attributes:
        blocks: how many, from the first on.
        tier: where the last of them is.
        last_used_s: when that was last used, in seconds since the Unix epoch.
        usable: with how many of them a request can begin there.
    """

    blocks: int
    tier: Tier
    last_used_s: int
    usable: int


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """A block that a worker has, for the index.

    Attributes:
        usable: with how many blocks a request can begin whose prompt matches up to this one.
    """

    hash: bytes
    tier: Tier
    last_used_s: int
    usable: int


@dataclass(frozen=True, slots=True)
class Change:
    """Change of a worker's part of the index: at most `BLOCKS_AT_ONCE` blocks.

    Attributes:
        version: what the part must have before; None to begin anew, with nothing.
        new_version: what it has then.
    """

    version: int | None
    new_version: int
    removed: Sequence[bytes] = ()
    added: Sequence[CachedBlock] = ()


class _Call(NamedTuple):
    keys: list[str]
    arguments: list[str | bytes | int]


class PrefixIndex:
    """Reads and writes the index. What Redis raises passes as it is."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def longest(
        self, prompts: Iterable[tuple[Sequence[Holder], Sequence[bytes]]]
    ) -> list[dict[Holder, Match]]:
        """The longest match of each prompt on each of its workers, all in one round trip. Workers without
        any are left out.

        Args:
            prompts: the workers to ask about, and the hashes of the prompt's blocks.
        """
        asked = list(prompts)
        calls = [
            _Call([_key(holder) for holder in holders], [b"".join(hashes), HASH_BYTES])
            for holders, hashes in asked
            if holders  # a call without a key has no place in a cluster
        ]
        answers = iter(await self._run(_LONGEST, calls))
        return [
            dict(_matches(holders, cast("list[object]", next(answers)))) if holders else {}
            for holders, _hashes in asked
        ]

    async def write(self, holder: Holder, changes: Iterable[Change]) -> bool:
        """Bring a worker's part up to date, in one round trip; False if it was not as the worker thought:
        then it has to be begun anew."""
        return all(await self._run(_WRITE, [_Call([_key(holder)], _arguments(change)) for change in changes]))

    async def _run(self, script: str, calls: Sequence[_Call]) -> list[object]:
        """Call a script in a pipeline. A server that does not know it yet is told once."""
        if not calls:
            return []
        digest = sha1(script.encode(), usedforsecurity=False).hexdigest()
        try:
            return await self._pipeline(digest, calls)
        except NoScriptError:
            await self._redis.script_load(script)
            return await self._pipeline(digest, calls)

    async def _pipeline(self, digest: str, calls: Sequence[_Call]) -> list[object]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for keys, arguments in calls:
                pipeline.evalsha(digest, len(keys), *keys, *arguments)
            return cast("list[object]", await pipeline.execute())

    async def forget(self, holder: Holder) -> None:
        """Remove a worker's part: it leaves."""
        await self._redis.unlink(_key(holder))


def _key(holder: Holder) -> str:
    return f"{_PREFIX}{holder.worker_id}:{holder.incarnation}"


def _arguments(change: Change) -> list[str | bytes | int]:
    added = b"".join(
        block.hash + _VALUE.pack(block.tier, block.last_used_s, block.usable) for block in change.added
    )
    expected = "" if change.version is None else str(change.version)
    lifetime_ms = LIFETIME_S * 1000
    sizes = [HASH_BYTES, _VALUE.size]
    removed = b"".join(change.removed)
    return [expected, str(change.new_version), lifetime_ms, removed, added, *sizes]


def _matches(holders: Sequence[Holder], answer: list[object]) -> Iterable[tuple[Holder, Match]]:
    """Decode matches; a value that is not as this version writes it counts as no match."""
    for holder, blocks, value in zip(holders, answer[::2], answer[1::2], strict=True):
        if isinstance(blocks, int) and isinstance(value, bytes) and blocks and len(value) == _VALUE.size:
            tier, last_used_s, usable = _VALUE.unpack(value)
            if tier <= max(Tier):
                yield holder, Match(blocks, Tier(tier), last_used_s, min(usable, blocks))
