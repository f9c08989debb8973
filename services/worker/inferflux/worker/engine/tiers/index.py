"""Which kept tokens share the longest prefix with given ones (pure).

Tokens are looked up by blocks: a block's key contains that of the block before it, so a dictionary finds how
many whole blocks match. The tokens themselves decide; a key only leads to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from inferflux.worker.engine.envelope import TokenArray

# Shorter prefixes are not kept: they are computed in a step.
BLOCK = 16

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Found(Generic[V]):
    """A kept value, and how many of its first tokens match."""

    value: V
    matched: int


class TokenIndex(Generic[V]):
    """Values by scope and tokens. Several may have the same."""

    def __init__(self) -> None:
        self._by_block: dict[int, list[tuple[V, TokenArray]]] = {}

    def add(self, scope: str, tokens: TokenArray, value: V) -> None:
        """Find `value` by `tokens`; nothing if they do not fill a block."""
        for key in _keys(scope, tokens):
            self._by_block.setdefault(key, []).append((value, tokens))

    def remove(self, scope: str, tokens: TokenArray, value: V) -> None:
        """Undo `add`."""
        for key in _keys(scope, tokens):
            left = [item for item in self._by_block.get(key, []) if item[0] is not value]
            if left:
                self._by_block[key] = left
            else:
                self._by_block.pop(key, None)

    def find(self, scope: str, tokens: TokenArray, most: int) -> Iterator[Found[V]]:
        """What shares a block at least with `tokens`: the longest match first, of `most` tokens at most."""
        keys = []
        for key in _keys(scope, tokens[:most]):
            if key not in self._by_block:
                break
            keys.append(key)
        seen: list[V] = []
        for key in reversed(keys):
            fresh = [item for item in self._by_block[key] if not any(item[0] is v for v in seen)]
            seen += [value for value, _ in fresh]
            found = [Found(value, common_prefix(kept, tokens[:most])) for value, kept in fresh]
            yield from sorted((f for f in found if f.matched >= BLOCK), key=lambda f: -f.matched)


def common_prefix(a: TokenArray, b: TokenArray) -> int:
    """Tokens at the beginning that are the same."""
    n = min(a.shape[0], b.shape[0])
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if differs.size else n


def _keys(scope: str, tokens: TokenArray) -> Iterator[int]:
    """A key for each whole block, of it and all before it."""
    key = hash(scope)
    for end in range(BLOCK, tokens.shape[0] + 1, BLOCK):
        key = hash((key, tokens[end - BLOCK : end].tobytes()))
        yield key
