"""What may come next, by what followed the same tokens before in prompt and answer (pure).

Prompt lookup (Saxena, 2023): an answer that quotes, corrects or goes on with its prompt repeats runs of it.
Once a run is found it is followed, token by token, until another token comes. So how often what it has comes
next is known without a draft, and for each length of what has agreed so far.
"""

from __future__ import annotations

from typing import NamedTuple

from .envelope import TokenArray

# Tokens of a run that has to occur again. Longer runs are asked for first: they mislead less.
SIZES = (4, 2, 1)
# Of a longer prompt, what is further from its end is not looked up: indexing it takes a step's time.
MOST_INDEXED = 16384


class Followed(NamedTuple):
    """What became of a token that was expected.

    Attributes:
        length: how many tokens before it agreed with what was followed.
        is_same: whether it came.
    """

    length: int
    is_same: bool


class NgramIndex:
    """Where the runs of one sequence's tokens ended last, and the run that the sequence follows.

    Attributes:
        length: how many of the last tokens agree with the run that is followed; 0: none is.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        # Of a long prompt, tokens before those.
        self._skipped = 0
        # By the tokens of a run: the position after it, where there is a token.
        self._after: dict[tuple[int, ...], int] = {}
        # The runs that the tokens end with, the longest first.
        self._last: list[tuple[int, ...]] = []
        # The position of the token that is expected next.
        self._at = 0
        self.length = 0

    def extend(self, tokens: TokenArray, n: int) -> list[Followed]:
        """Take up new tokens.

        Args:
            tokens: the first `n` are all that the sequence has, no fewer than at the last call.

        Returns:
            What became of those that were expected.
        """
        if not self._tokens:
            self._skipped = max(n - MOST_INDEXED, 0)
            self._index_all(tokens[self._skipped : n].tolist())
            self._look_up()
            return []
        known = self._tokens
        followed = []
        for token in tokens[self._skipped + len(known) : n].tolist():
            length = self.length
            if length:
                is_same = known[self._at] == token
                followed.append(Followed(length, is_same))
                self._at += 1
                self.length = length + 1 if is_same else 0
            self._append(token)
            if not self.length:
                self._look_up()
        return followed

    def draft(self, n: int) -> list[int]:
        """The `n` tokens that come next if the run goes on; where fewer follow it, they repeat."""
        found = self._tokens[self._at : self._at + n]
        while len(found) < n:
            found += found[: n - len(found)]
        return found

    def _index_all(self, tokens: list[int]) -> None:
        self._tokens = tokens
        for size in SIZES:
            runs = zip(*(tokens[first:-1] for first in range(size)), strict=False)
            self._after.update(zip(runs, range(size, len(tokens)), strict=False))
        self._last = _ends_of(tokens)

    def _append(self, token: int) -> None:
        """The runs that ended last have a token after them now."""
        known = self._tokens
        for run in self._last:
            self._after[run] = len(known)
        known.append(token)
        self._last = _ends_of(known)

    def _look_up(self) -> None:
        """Follow what the last tokens were followed by before, if they occurred before."""
        for run in self._last:
            at = self._after.get(run)
            if at is not None:
                self._at, self.length = at, len(run)
                return


def _ends_of(tokens: list[int]) -> list[tuple[int, ...]]:
    """The runs at the end of these tokens, the longest first; of few tokens, some of them shorter."""
    return [tuple(tokens[-size:]) for size in SIZES]
