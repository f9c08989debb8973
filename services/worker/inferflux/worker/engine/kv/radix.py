"""A compressed trie over token ids: which sequence holds the longest prefix of a prompt (pure).

Each scope has a tree of its own: nothing is found across scopes. An edge has its token ids as bytes, which
are compared many at a time. It ends where sequences part, and where one ended. So each piece has uses of its
own, and the piece with the least of them is evicted first. A use counts half after `HALF_LIFE` requests: what
is asked for often outlives what was asked for once, and what is new outlives what was asked for long ago.
Pieces that no sequence holds any more are remembered with their uses for a while. Nothing finds them, but
they need not begin at nothing when they are computed again.

A holder is a sequence that has the tokens of a node in its KV cells. It is pinned while it is a request's:
then it is neither evicted nor superseded. The tree is that of SGLang's RadixAttention (Zheng et al., 2023),
the order of eviction LRFU (Lee et al., 2001).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferflux.common.contract.callers.cache_scope import is_within

TokenArray = NDArray[np.int32]
_ID_BYTES = 4
# Requests after which a use counts half.
HALF_LIFE = 1024
# What is remembered of pieces that no sequence holds, in token ids; a piece counts as some beside its own.
_MOST_REMEMBERED = 1 << 18
_PIECE_IDS = 64


# With the holder, its scope, its tokens, and how many of them are held by some sequence afterwards.
BeforeEviction = Callable[[int, str, TokenArray, int], None]


class Match(NamedTuple):
    """The longest known prefix: `holder` has its `matched_tokens`. No holder: nothing is known."""

    matched_tokens: int
    holder: int | None


class Eviction(NamedTuple):
    """`holder` is to keep `kept_tokens`; 0: nothing, and it is not known any more."""

    holder: int
    kept_tokens: int


@dataclass(slots=True, eq=False)
class _Node:
    """The piece of token ids that ends at position `end`."""

    tokens: bytes
    above: _Node | None
    end: int
    # The logarithm, to base 2, of its uses, each doubled for every `HALF_LIFE` requests before it. So the
    # order of two pieces does not change while neither is used.
    uses: float
    # Holders here and below.
    live: int = 0
    # By the first token.
    below: dict[bytes, _Node] = field(default_factory=dict)
    holders: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Size of its entry in memory, in token ids."""
        return len(self.tokens) // _ID_BYTES + _PIECE_IDS


class RadixPrefixCache:
    """The prefixes that sequences hold.

    Args:
        is_divisible: whether a holder's first tokens can be had without the rest. Otherwise one holder does
            not replace another with fewer tokens, and none is cut.

    Attributes:
        version: rises with every new prefix: before that, a prompt that found nothing finds nothing.
        n_tokens: token ids of all edges.
    """

    def __init__(self, *, is_divisible: bool = True) -> None:
        self.version = 0
        self.n_tokens = 0
        self._is_divisible = is_divisible
        self._roots: dict[str, _Node] = {}
        self._requests = 0
        self._places: dict[int, tuple[str, _Node]] = {}
        self._pinned: set[int] = set()
        # Nodes that no sequence holds.
        self._remembered: set[_Node] = set()
        self._remembered_size = 0

    def __len__(self) -> int:
        """Holders."""
        return len(self._places)

    @property
    def n_evictable(self) -> int:
        """Holders that are not pinned."""
        return len(self._places) - len(self._pinned)

    def is_evictable(self, holder: int) -> bool:
        """True if it is known and not pinned."""
        return holder in self._places and holder not in self._pinned

    def lookup(self, scope: str, tokens: TokenArray) -> Match:
        """The longest prefix of `tokens` that a sequence of this scope holds."""
        root = self._roots.get(scope)
        if root is None:
            return Match(0, None)
        node, matched = self._descend(root, _bytes_of(tokens), least_live=1)
        if matched == 0:
            return Match(0, None)
        while not node.holders:
            node = next(below for below in node.below.values() if below.live)
        return Match(matched, node.holders[0])

    def candidates(self, scope: str, tokens: TokenArray, most: int) -> Iterator[Match]:
        """Holders of prefixes of `tokens`, the longest prefix first: `most` holders that go on in another
        way, then all that hold a prefix and nothing else."""
        root = self._roots.get(scope)
        if root is None:
            return
        node, matched = self._descend(root, _bytes_of(tokens), least_live=1)
        if matched == 0:
            return
        going_on = (h for each in self._from(node) for h in each.holders)
        for holder in list(islice(going_on, most)):
            yield Match(matched, holder)
        for each in list(self._path(node)):
            if each.end <= matched:
                for holder in list(each.holders):
                    yield Match(each.end, holder)

    def use(self, match: Match) -> None:
        """Count what `lookup` found as used once more."""
        if match.holder is None:
            return
        for node in self._path(self._places[match.holder][1]):
            if node.end <= match.matched_tokens:
                node.uses = self._once_more(node.uses)

    def hold(self, scope: str, tokens: TokenArray, holder: int) -> list[int]:
        """Note that `holder` has `tokens`, at least one, and pin it. What it had before is replaced.

        Returns:
            Holders that are not known any more: not pinned, with no tokens that `holder` lacks.
        """
        self._requests += holder not in self._places
        node = self._insert(scope, tokens)
        self._place(holder, scope, node)
        self._pinned.add(holder)
        return self._supersede(node) if self._is_divisible else []

    def unpin(self, holder: int) -> bool:
        """A pinned holder's request has ended.

        Returns:
            Whether it is still known: False if others hold all its tokens.
        """
        self._pinned.discard(holder)
        _, node = self._places[holder]
        if self._is_divisible:
            has_others = node.live > 1
        else:
            # One that is pinned goes on, and then has more than these tokens.
            has_others = any(h != holder and h not in self._pinned for h in node.holders)
        if has_others:
            self.drop(holder)
            return False
        return True

    def drop(self, holder: int) -> None:
        """Forget a holder; nothing if it is not known."""
        self._forget(holder)
        self._pinned.discard(holder)

    def evict(self, before: BeforeEviction | None = None, spared: Container[int] = ()) -> Eviction | None:
        """Forget the piece that was used least; None if all that is left is pinned.

        Args:
            before: called while the holder is known still.
            spared: holders that stay as if they were pinned.
        """
        least: _Node | None = None
        victim = -1
        for holder, (_, node) in self._places.items():
            if holder in self._pinned or holder in spared:
                continue
            if least is None or node.uses < least.uses:
                least, victim = node, holder
        if least is None:
            return None
        scope, above = self._places[victim][0], least.above
        if not self._is_divisible:
            above = None
        if before is not None:
            before(victim, scope, self.tokens_of(victim), 0 if above is None else above.end)
        if above is None or above.end == 0 or above.live > 1:
            self.drop(victim)
            return Eviction(victim, 0)
        self._place(victim, scope, above)
        return Eviction(victim, above.end)

    def unpinned(self) -> list[int]:
        """Holders that are not pinned, the most used first."""
        found = (holder for holder in self._places if holder not in self._pinned)
        return sorted(found, key=lambda holder: -self._places[holder][1].uses)

    def clear(self, scope: str = "") -> list[int]:
        """Forget every holder that is not pinned, and what is remembered.

        Args:
            scope: only of this one; empty: of every scope.

        Returns:
            The holders.
        """
        gone = [
            holder
            for holder, (its_scope, _) in self._places.items()
            if holder not in self._pinned and is_within(its_scope, scope)
        ]
        for holder in gone:
            self.drop(holder)
        cleared = [root for its_scope, root in self._roots.items() if is_within(its_scope, scope)]
        for node in [node for node in self._remembered if self._root_of(node) in cleared]:
            self._cut(node)
        self._drop_empty_roots()
        return gone

    def held(self) -> list[int]:
        """Every holder."""
        return list(self._places)

    def tokens_of(self, holder: int) -> TokenArray:
        """All token ids of a known holder."""
        pieces = [node.tokens for node in self._path(self._places[holder][1])]
        return np.frombuffer(b"".join(pieces[::-1]), np.int32)

    def scope_of(self, holder: int) -> str:
        """The scope of a known holder."""
        return self._places[holder][0]

    @staticmethod
    def _descend(root: _Node, tokens: bytes, least_live: int = 0) -> tuple[_Node, int]:
        """(the node within which the longest match ends, its length in tokens), among nodes with at
        least this many holders."""
        node, at, n = root, 0, len(tokens)
        while at < n:
            below = node.below.get(tokens[at : at + _ID_BYTES])
            if below is None or below.live < least_live:
                break
            node = below
            if not tokens.startswith(node.tokens, at):
                return node, at // _ID_BYTES + _n_common(node.tokens, tokens[at : at + len(node.tokens)])
            at += len(node.tokens)
        return node, at // _ID_BYTES

    def _insert(self, scope: str, tokens: TokenArray) -> _Node:
        """The node that ends with `tokens`."""
        self.version += 1
        root = self._roots.get(scope)
        if root is None:
            root = self._roots[scope] = _Node(b"", None, 0, 0.0)
        data = _bytes_of(tokens)
        node, at = self._descend(root, data)
        is_divided = at < node.end
        if is_divided:
            node = self._divide(node, at)
        for each in self._path(node):
            # `use` has counted whole pieces that were held.
            if not each.live or (is_divided and each is node):
                each.uses = self._once_more(each.uses)
        if at < tokens.shape[0]:
            rest = data[at * _ID_BYTES :]
            below = _Node(rest, node, tokens.shape[0], self._requests / HALF_LIFE)
            node.below[rest[:_ID_BYTES]] = below
            node = below
            self.n_tokens += tokens.shape[0] - at
        return node

    def _divide(self, node: _Node, at: int) -> _Node:
        """Divide a piece at position `at`, which it has; returns its first part."""
        above = node.above
        assert above is not None  # noqa: S101 - the root has no piece
        n = (at - above.end) * _ID_BYTES
        first = _Node(node.tokens[:n], above, at, node.uses, node.live)
        if node in self._remembered:
            self._remembered.add(first)
            self._remembered_size += _PIECE_IDS
        above.below[first.tokens[:_ID_BYTES]] = first
        node.tokens = node.tokens[n:]
        node.above = first
        first.below[node.tokens[:_ID_BYTES]] = node
        return first

    def _once_more(self, uses: float) -> float:
        now = self._requests / HALF_LIFE
        return now + math.log2(1.0 + 2.0 ** (uses - now))

    def _supersede(self, node: _Node) -> list[int]:
        """Forget the holders on the way to `node` that are not pinned."""
        found = [h for each in self._path(node) for h in each.holders if h not in self._pinned]
        for holder in found:
            self.drop(holder)
        return found

    def _place(self, holder: int, scope: str, node: _Node) -> None:
        """Have a holder hold the tokens of `node`, and no others."""
        node.holders.append(holder)
        for each in self._path(node):
            each.live += 1
            if each in self._remembered:
                self._remembered.remove(each)
                self._remembered_size -= each.size
        self._forget(holder)
        self._places[holder] = scope, node

    def _forget(self, holder: int) -> None:
        """Take a holder off its node. Nodes that no sequence holds then are remembered."""
        place = self._places.pop(holder, None)
        if place is None:
            return
        _, node = place
        node.holders.remove(holder)
        for each in self._path(node):
            each.live -= 1
            if not each.live:
                self._remembered.add(each)
                self._remembered_size += each.size
        if self._remembered_size > _MOST_REMEMBERED:
            self._forget_remembered()

    def _forget_remembered(self) -> None:
        """Forget the nodes that were used least, of those that no sequence holds: a quarter."""
        for node in sorted(self._remembered, key=lambda node: (node.uses, -node.end)):
            if self._remembered_size <= _MOST_REMEMBERED * 3 // 4:
                break
            self._cut(node)
        self._drop_empty_roots()

    def _cut(self, node: _Node) -> None:
        """Take a node that no sequence holds off the tree, with all below it; nothing if it is off."""
        if node not in self._remembered or node.above is None:
            return
        del node.above.below[node.tokens[:_ID_BYTES]]
        cut = [node]
        while cut:
            each = cut.pop()
            cut += each.below.values()
            self._remembered.remove(each)
            self._remembered_size -= each.size
            self.n_tokens -= len(each.tokens) // _ID_BYTES

    def _drop_empty_roots(self) -> None:
        for scope in [scope for scope, root in self._roots.items() if not root.below]:
            del self._roots[scope]

    @staticmethod
    def _root_of(node: _Node) -> _Node:
        while node.above is not None:
            node = node.above
        return node

    @staticmethod
    def _from(node: _Node) -> Iterator[_Node]:
        """`node`, and all below it."""
        left = [node]
        while left:
            each = left.pop()
            yield each
            left.extend(each.below.values())

    @staticmethod
    def _path(node: _Node | None) -> Iterator[_Node]:
        """Yield the nodes from `node` up to the root, which is not included."""
        while node is not None and node.above is not None:
            yield node
            node = node.above


def _bytes_of(tokens: TokenArray) -> bytes:
    return tokens.astype(np.int32, copy=False).tobytes()


def _n_common(a: bytes, b: bytes) -> int:
    """Number of first tokens that are the same."""
    n = min(len(a), len(b)) // _ID_BYTES
    differs = np.frombuffer(a, np.int32, n) != np.frombuffer(b, np.int32, n)
    first = int(differs.argmax())
    return first if differs[first] else n
