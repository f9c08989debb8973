"""Blocks of a model's prefixes that this worker has cached, for the fleet's index (pure).

The engine reports whole sequences. The index has blocks: one that several sequences begin with is in it
once, and goes with the last of them. Each block stands for as many tokens as it has, in the KV cache, in host
memory or on disk, so there are never more than those hold.

Each block says what a request can begin with. Some sequences can be shared in part: a request begins where
its prompt parts from them. Others serve as a whole: a request begins where the longest of them ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from inferflux.common.prefixes.index import BLOCKS_AT_ONCE, CachedBlock, Change, Tier
from inferflux.v1 import engine_pb2, generation_pb2

# Hashes of blocks, given token ids and a cache scope: `PrefixHasher.of`.
HashOf = Callable[[bytes, str], Sequence[bytes]]

# Blocks that each renewal writes again.
_RENEWED = 512
# By what the engine reports; a tier that is not known counts as the farthest.
_TIERS = {generation_pb2.CACHE_TIER_DEVICE: Tier.DEVICE, generation_pb2.CACHE_TIER_HOST: Tier.HOST}


@dataclass(slots=True, eq=False)
class _Block:
    """A block that sequences begin with.

    Attributes:
        above: the one before it; None: it is the first.
        depth: blocks up to its end.
        holders: where each sequence has it.
        parts: sequences among them of which any part can be shared.
        ends: sequences that end with it, and serve as a whole.
        usable: as the index has it.
    """

    hash: bytes
    above: _Block | None
    depth: int
    last_used_s: int
    holders: dict[int, Tier] = field(default_factory=dict)
    parts: int = 0
    ends: int = 0
    usable: int = 0
    below: list[_Block] = field(default_factory=list)

    @property
    def tier(self) -> Tier:
        return min(self.holders.values())


@dataclass(frozen=True, slots=True)
class _Cached:
    """A sequence that is cached: its blocks, and whether it serves as a whole only."""

    blocks: list[_Block]
    is_indivisible: bool


class CachedPrefixes:
    """Takes reports in, gives changes out.

    Changes build upon each other by version. Whenever one may not have been written, `begin_anew` has all
    written again.
    """

    def __init__(self, hash_of: HashOf) -> None:
        self._hash_of = hash_of
        self._cached: dict[int, _Cached] = {}
        self._blocks: dict[bytes, _Block] = {}
        # In this order, each block once.
        self._changed: dict[bytes, None] = {}
        # Blocks that are still to be written again.
        self._rotation: list[bytes] = []
        self._version = 0
        self._must_begin_anew = True
        # Whether the index may have anything of this worker.
        self._is_stored = False

    def __len__(self) -> int:
        """Blocks that are cached."""
        return len(self._blocks)

    @property
    def has_changes(self) -> bool:
        return bool(self._changed) or (self._must_begin_anew and (self._is_stored or bool(self._blocks)))

    @property
    def is_written(self) -> bool:
        """True if the index has a part of this worker, as far as is known."""
        return not self._must_begin_anew

    def report(self, cached: engine_pb2.CachedPrefix, now_s: int) -> None:
        """Take in what the engine has of a sequence now.

        Args:
            now_s: in seconds since the Unix epoch.
        """
        hashes = self._hash_of(cached.token_ids, cached.cache_scope) if cached.token_ids else ()
        tier = _TIERS.get(cached.tier, Tier.DISK)
        before = self._cached.pop(cached.entry, None)
        if hashes:
            self._cached[cached.entry] = self._hold(cached.entry, hashes, tier, cached.is_indivisible, now_s)
        if before is not None:
            self._let_go(cached.entry, before)

    def clear(self) -> None:
        """Nothing is cached any more: the engine died, or hashes are made with another salt."""
        self._cached.clear()
        self._blocks.clear()
        self.begin_anew()

    def use(self, hash_of: HashOf) -> None:
        """Hash in another way from now on. What was reported before is forgotten: its tokens are not kept."""
        self._hash_of = hash_of
        self.clear()

    def begin_anew(self) -> None:
        """The index may not be as was thought: everything is to be written again."""
        self._changed.clear()
        self._must_begin_anew = True

    def take_changes(self) -> Iterator[Change]:
        """Changes to write, in this order. They count as written."""
        changed, self._changed = self._changed, {}
        rest = iter(changed)
        while True:
            if self._must_begin_anew:
                rest = iter(list(self._blocks))
            some = list(islice(rest, BLOCKS_AT_ONCE))
            if not (some or self._must_begin_anew):
                return
            yield self._change(some)

    def renewal(self) -> Change:
        """Keeps what is written from expiring, and writes some of it again. So what others have done to it is
        mended, all of it in time."""
        if not self._rotation:
            self._rotation = list(self._blocks)
        again, self._rotation = self._rotation[-_RENEWED:], self._rotation[:-_RENEWED]
        added = [self._block(each) for each in again if each in self._blocks]
        return Change(self._version, self._version, (), added)

    def _change(self, blocks: Iterable[bytes]) -> Change:
        before = None if self._must_begin_anew else self._version
        self._must_begin_anew = False
        self._is_stored = True
        self._version += 1
        removed = [] if before is None else [each for each in blocks if each not in self._blocks]
        added = [self._block(each) for each in blocks if each in self._blocks]
        return Change(before, self._version, removed, added)

    def _block(self, each: bytes) -> CachedBlock:
        block = self._blocks[each]
        return CachedBlock(each, block.tier, block.last_used_s, block.usable)

    def _hold(
        self, entry: int, hashes: Sequence[bytes], tier: Tier, is_indivisible: bool, now_s: int
    ) -> _Cached:
        """Have a sequence hold these blocks."""
        blocks: list[_Block] = []
        for each in hashes:
            above = blocks[-1] if blocks else None
            blocks.append(self._put(each, above, entry, tier, now_s))
        held = _Cached(blocks, is_indivisible)
        self._count(held, 1)
        blocks[-1].last_used_s = now_s
        self._note(hashes[-1])
        return held

    def _note(self, each: bytes) -> None:
        """A block has changed. While all are to be written again it is not noted: Redis may be away for long,
        and blocks come and go meanwhile."""
        if not self._must_begin_anew:
            self._changed[each] = None

    def _put(self, each: bytes, above: _Block | None, entry: int, tier: Tier, now_s: int) -> _Block:
        """Have a sequence hold a block, after the one that it holds before it."""
        block = self._blocks.get(each)
        if block is None:
            depth = above.depth + 1 if above else 1
            block = self._blocks[each] = _Block(each, above, depth, now_s, {entry: tier})
            if above:
                above.below.append(block)
            self._note(each)
            return block
        was = block.tier
        block.holders[entry] = tier
        if block.tier is not was:
            self._note(each)
        return block

    def _let_go(self, entry: int, held: _Cached) -> None:
        """A sequence does not hold these blocks any more, but for those that it holds anew."""
        self._count(held, -1)
        anew = self._cached.get(entry)
        kept = set(map(id, anew.blocks)) if anew else set()
        for block in reversed(held.blocks):  # a block goes after those below it
            if id(block) in kept:
                continue
            was = block.tier
            del block.holders[entry]
            if not block.holders:
                del self._blocks[block.hash]
                if block.above:
                    block.above.below.remove(block)
            if not block.holders or block.tier is not was:
                self._note(block.hash)

    def _count(self, held: _Cached, by: int) -> None:
        """Count a sequence that holds blocks, or does not any more, for what requests can begin with."""
        if held.is_indivisible:
            held.blocks[-1].ends += by
        else:
            for block in held.blocks:
                block.parts += by
        for block in held.blocks:
            self._settle(block)

    def _settle(self, block: _Block) -> None:
        """Find out again what of a block is usable, and of those below it."""
        left = [block]
        while left:
            each = left.pop()
            usable = each.depth if each.parts or each.ends else (each.above.usable if each.above else 0)
            if usable != each.usable:
                each.usable = usable
                self._note(each.hash)
                left += each.below
