"""Prefixes that a modelled worker has cached, in blocks of a trace, and the index over those of all (pure).

A block's name stands for all tokens up to its end, so that a set of names is a tree of prefixes.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Sequence

from benchmarks.traces.request import BLOCK_TOKENS


class BlockIndex:
    """The workers that have each block, as the fleet's index says it; here without delay.

    Args:
        most: holders that a lookup names, at most, those of the longest prefixes.
    """

    def __init__(self, most: int = 8) -> None:
        self._most = most
        self._holders: dict[int, dict[str, None]] = defaultdict(dict)

    def add(self, block: int, worker_id: str) -> None:
        self._holders[block][worker_id] = None

    def discard(self, block: int, worker_id: str) -> None:
        holders = self._holders[block]
        holders.pop(worker_id, None)
        if not holders:
            del self._holders[block]

    def longest(self, blocks: Sequence[int]) -> dict[str, int]:
        """How many of these blocks workers have, from the first on, by worker."""
        found: dict[str, int] = {}
        for n in range(len(blocks), 0, -1):
            for worker_id in self._holders.get(blocks[n - 1], ()):
                if len(found) == self._most:
                    return found
                found.setdefault(worker_id, n)
        return found

    def __len__(self) -> int:
        return len(self._holders)


class BlockCache:
    """Blocks of one worker: those that its requests hold, and the others, of which the longest unused go
    first. No block goes before those that continue it.

    Attributes:
        cells: of blocks that no request holds.
    """

    def __init__(self, index: BlockIndex, worker_id: str) -> None:
        self._index = index
        self._worker_id = worker_id
        self._held: Counter[int] = Counter()
        self._free: OrderedDict[int, None] = OrderedDict()

    @property
    def cells(self) -> int:
        return BLOCK_TOKENS * len(self._free)

    def match(self, blocks: Sequence[int]) -> int:
        """How many of these blocks are here, from the first on."""
        return next((at for at, b in enumerate(blocks) if b not in self), len(blocks))

    def use(self, blocks: Sequence[int]) -> int:
        """As `match`, for a request that begins to run with them."""
        found = self.match(blocks)
        for block in reversed(blocks[:found]):
            if block in self._free:
                self._free.move_to_end(block)
        return found

    def hold(self, blocks: Sequence[int]) -> None:
        """A request has computed them, and goes on."""
        for block in blocks:
            if block not in self:
                self._index.add(block, self._worker_id)
            self._free.pop(block, None)
            self._held[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """The request that held them has left."""
        for block in reversed(blocks):
            self._held[block] -= 1
            if not self._held[block]:
                del self._held[block]
                self._free[block] = None

    def shrink(self, cells: int) -> None:
        """Free this many cells, or all there are."""
        for _ in range(min(-(-cells // BLOCK_TOKENS), len(self._free))):
            self._index.discard(self._free.popitem(last=False)[0], self._worker_id)

    def clear(self) -> None:
        """All is lost, what requests hold as well."""
        for block in (*self._held, *self._free):
            self._index.discard(block, self._worker_id)
        self._held.clear()
        self._free.clear()

    def __contains__(self, block: int) -> bool:
        return block in self._held or block in self._free
