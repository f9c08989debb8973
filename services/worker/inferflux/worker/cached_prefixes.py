"""What of a model's prefixes this worker has cached, as blocks for the fleet's index (pure).

The engine reports whole sequences. The index has blocks: one that several sequences begin with is in it
once, and goes with the last of them. Each block stands for as many tokens as it has, in the KV cache, in host
memory or on disk, so there are never more than those hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from inferflux.common.prefixes.index import BLOCKS_AT_ONCE, CachedBlock, Change, Tier
from inferflux.v1 import engine_pb2, generation_pb2

# Hashes of blocks, given token ids and a cache scope: `PrefixHasher.of`.
HashOf = Callable[[bytes, str], Sequence[bytes]]

# Blocks that each renewal writes again.
_RENEWED = 512
# By what the engine reports; a tier that is not known counts as the farthest.
_TIERS = {generation_pb2.CACHE_TIER_DEVICE: Tier.DEVICE, generation_pb2.CACHE_TIER_HOST: Tier.HOST}


class CachedPrefixes:
    """Takes reports in, gives changes out.

    Changes build upon each other by version. Whenever one may not have been written, `begin_anew` has all
    written again.
    """

    def __init__(self, hash_of: HashOf) -> None:
        self._hash_of = hash_of
        # Of each cached sequence.
        self._hashes: dict[int, Sequence[bytes]] = {}
        # Of each block: where the sequences have it that begin with it.
        self._holders: dict[bytes, dict[int, Tier]] = {}
        self._last_used_s: dict[bytes, int] = {}
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
        return len(self._holders)

    @property
    def has_changes(self) -> bool:
        return bool(self._changed) or (self._must_begin_anew and (self._is_stored or bool(self._holders)))

    @property
    def is_written(self) -> bool:
        """Whether the index has a part of this worker, as far as is known."""
        return not self._must_begin_anew

    def report(self, cached: engine_pb2.CachedPrefix, now_s: int) -> None:
        """Take in what the engine has of a sequence now.

        Args:
            now_s: in seconds since the Unix epoch.
        """
        hashes = self._hash_of(cached.token_ids, cached.cache_scope) if cached.token_ids else ()
        tier = _TIERS.get(cached.tier, Tier.DISK)
        before = self._hashes.pop(cached.entry, ())
        for gone in set(before).difference(hashes):
            self._let_go(gone, cached.entry)
        if not hashes:
            return
        self._hashes[cached.entry] = hashes
        for each in hashes:
            self._hold(each, cached.entry, tier, now_s)
        self._last_used_s[hashes[-1]] = now_s
        self._changed[hashes[-1]] = None

    def clear(self) -> None:
        """Nothing is cached any more: the engine died, or hashes are made with another salt."""
        self._hashes.clear()
        self._holders.clear()
        self._last_used_s.clear()
        self._changed.clear()
        self._must_begin_anew = True

    def use(self, hash_of: HashOf) -> None:
        """Hash in another way from now on. What was reported before is forgotten: its tokens are not kept."""
        self._hash_of = hash_of
        self.clear()

    def begin_anew(self) -> None:
        """The index may not be as was thought: everything is to be written again."""
        self._must_begin_anew = True

    def take_changes(self) -> Iterator[Change]:
        """What is to be written, in this order. It counts as written."""
        if self._must_begin_anew:
            self._changed = dict.fromkeys(self._holders)
        changed, self._changed = self._changed, {}
        rest = iter(changed)
        while (some := list(islice(rest, BLOCKS_AT_ONCE))) or self._must_begin_anew:
            yield self._change(some)

    def renewal(self) -> Change:
        """Keeps what is written from expiring, and writes some of it again. So what others have done to it is
        mended, all of it in time."""
        if not self._rotation:
            self._rotation = list(self._holders)
        again, self._rotation = self._rotation[-_RENEWED:], self._rotation[:-_RENEWED]
        added = [self._block(each) for each in again if each in self._holders]
        return Change(self._version, self._version, (), added)

    def _change(self, blocks: Iterable[bytes]) -> Change:
        before = None if self._must_begin_anew else self._version
        self._must_begin_anew = False
        self._is_stored = True
        self._version += 1
        removed = [] if before is None else [each for each in blocks if each not in self._holders]
        added = [self._block(each) for each in blocks if each in self._holders]
        return Change(before, self._version, removed, added)

    def _block(self, each: bytes) -> CachedBlock:
        return CachedBlock(each, min(self._holders[each].values()), self._last_used_s[each])

    def _hold(self, each: bytes, entry: int, tier: Tier, now_s: int) -> None:
        holders = self._holders.get(each)
        if holders is None:
            self._holders[each] = {entry: tier}
            self._last_used_s[each] = now_s
            self._changed[each] = None
        elif holders.get(entry) is not tier:
            was = min(holders.values())
            holders[entry] = tier
            if min(holders.values()) is not was:
                self._changed[each] = None

    def _let_go(self, each: bytes, entry: int) -> None:
        holders = self._holders[each]
        was = min(holders.values())
        del holders[entry]
        if not holders:
            del self._holders[each], self._last_used_s[each]
            self._changed[each] = None
        elif min(holders.values()) is not was:
            self._changed[each] = None
