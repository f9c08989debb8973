"""Index of kept tokens by prefix, which finds those that share the longest with given ones (pure).

Tokens are looked up by blocks: a block's key contains that of the block before it, so a dictionary finds how
many whole blocks match. The scope and the tokens themselves decide; a key only leads to them. Thousands may
begin alike, with one system prompt: they are compared as a whole only when they are asked for.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from inferflux.worker.engine.kv.envelope import TokenArray

# Shorter prefixes are not kept: they are computed in a step.
BLOCK = 16

V = TypeVar("V", bound=Hashable)
# The scope, and a hash of all blocks up to one.
_Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Found(Generic[V]):
    """A kept value, and how many of its first tokens match."""

    value: V
    matched: int


class TokenIndex(Generic[V]):
    """Values by scope and tokens. Several may have the same."""

    def __init__(self) -> None:
        self._by_block: dict[_Key, dict[V, TokenArray]] = {}

    def add(self, scope: str, tokens: TokenArray, value: V) -> None:
        """Find `value` by `tokens`; nothing if they do not fill a block."""
        for key in _keys(scope, tokens):
            self._by_block.setdefault(key, {})[value] = tokens

    def remove(self, scope: str, tokens: TokenArray, value: V) -> None:
        """Undo `add`."""
        for key in _keys(scope, tokens):
            values = self._by_block.get(key)
            if values is not None:
                values.pop(value, None)
                if not values:
                    del self._by_block[key]

    def find(self, scope: str, tokens: TokenArray, most: int) -> Iterator[Found[V]]:
        """Yield what shares a block at least with `tokens`: the longest match first, of `most` tokens at
        most.

        Nothing may be added or removed meanwhile.
        """
        wanted = tokens[:most]
        blocks: list[dict[V, TokenArray]] = []
        for key in _keys(scope, wanted):
            values = self._by_block.get(key)
            if values is None:
                break
            blocks.append(values)
        longer: dict[V, TokenArray] = {}
        for n, values in reversed(list(enumerate(blocks, 1))):
            fresh = {v: kept for v, kept in values.items() if v not in longer} if longer else values
            yield from _longest_first(fresh, wanted, n * BLOCK)
            longer = values


def _longest_first(values: dict[V, TokenArray], wanted: TokenArray, end: int) -> Iterator[Found[V]]:
    """Yield those that match up to `end`, and for less than a block after it."""
    # Those that match for no token after it at least, for one, for two, ...
    levels = [list(values.items())]
    for at in range(end, min(end + BLOCK, wanted.size)):
        token = wanted.item(at)
        matching = [(v, kept) for v, kept in levels[-1] if kept.size > at and kept.item(at) == token]
        if not matching:
            break
        levels.append(matching)
    longer: set[V] = set()
    for n, matching in reversed(list(enumerate(levels, end))):
        for value, kept in matching:
            if value not in longer and common_prefix(kept[:n], wanted) == n:
                yield Found(value, n)
        longer = {value for value, _ in matching}


def common_prefix(a: TokenArray, b: TokenArray) -> int:
    """Tokens at the beginning that are the same."""
    n = min(a.shape[0], b.shape[0])
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if differs.size else n


def _keys(scope: str, tokens: TokenArray) -> Iterator[_Key]:
    """A key for each whole block, of it and all before it."""
    blocks = 0
    for end in range(BLOCK, tokens.shape[0] + 1, BLOCK):
        blocks = hash((blocks, tokens[end - BLOCK : end].tobytes()))
        yield scope, blocks
