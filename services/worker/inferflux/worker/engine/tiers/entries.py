"""Entries of the tiers: the states that are kept anywhere, found by their tokens (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Generic

from inferflux.worker.engine.kv.envelope import TokenArray

from .index import Found, TokenIndex
from .kept import Kept, Moves, S

# Kept states that are looked at for one that is worth restoring.
_CANDIDATES = 8


class Entries(Generic[S]):
    """The states that are kept.

    Args:
        is_divisible: whether the first tokens of a state can be restored without the rest.

    Attributes:
        moves: which came, moved and went.
    """

    def __init__(self, *, is_divisible: bool) -> None:
        self._is_divisible = is_divisible
        self._index: TokenIndex[Kept[S]] = TokenIndex()
        self.moves: Moves[S] = Moves()

    def add(self, kept: Kept[S]) -> None:
        """A state is kept that was not."""
        self._index.add(kept.header.scope, kept.tokens, kept)
        self.moves.came(kept)

    def remove(self, kept: Kept[S]) -> None:
        """A state is in no tier any more."""
        self._index.remove(kept.header.scope, kept.tokens, kept)
        self.moves.went(kept)

    def candidates(self, scope: str, tokens: TokenArray) -> Iterator[Found[Kept[S]]]:
        """States that have a usable prefix of `tokens`, the longest first."""
        found = self._index.find(scope, tokens, tokens.shape[0])
        usable = (f for f in found if self._is_divisible or f.matched == f.value.header.n_past)
        return islice(usable, _CANDIDATES)

    def longest(self, scope: str, tokens: TokenArray) -> int:
        """Number of the first of these tokens that some state begins with, usable or not."""
        found = next(self._index.find(scope, tokens, tokens.shape[0]), None)
        return 0 if found is None else found.matched
