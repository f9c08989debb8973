"""Tokens that may not come next: ends before the shortest answer, and words that are not said."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


class Bans:
    """The tokens that a request bans. They follow from the generated tokens alone.

    Args:
        words: token runs, of which none may be complete.
        ends: tokens that end a generation.
        min_tokens: none of these comes before this many tokens.
        generated: the tokens so far.
    """

    def __init__(
        self,
        words: Iterable[Sequence[int]],
        ends: Collection[int],
        min_tokens: int,
        generated: Sequence[int] = (),
    ) -> None:
        runs = {tuple(word) for word in words if word}
        self._single = sorted(word[0] for word in runs if len(word) == 1)
        self._longer = sorted(word for word in runs if len(word) > 1)
        self._ends = sorted(ends) if min_tokens else []
        self._min_tokens = min_tokens
        self._n = len(generated)
        self._recent = deque(generated, maxlen=max(map(len, self._longer), default=1) - 1)

    @classmethod
    def of(
        cls,
        words: Iterable[Sequence[int]],
        ends: Collection[int],
        min_tokens: int,
        generated: Sequence[int],
    ) -> Bans | None:
        """None where nothing is banned."""
        words = list(words)
        return cls(words, ends, min_tokens, generated) if words or min_tokens else None

    def __copy__(self) -> Bans:
        other = object.__new__(Bans)
        other.__dict__.update(self.__dict__)
        other._recent = self._recent.copy()
        return other

    @property
    def ids(self) -> Ids:
        """Return the tokens that may not come next."""
        recent = tuple(self._recent)
        banned = list(self._single)
        banned += (word[-1] for word in self._longer if recent[len(recent) + 1 - len(word) :] == word[:-1])
        if self._n < self._min_tokens:
            banned += self._ends
        return np.array(banned, np.int64)

    def accept(self, token: int) -> None:
        self._n += 1
        self._recent.append(token)
