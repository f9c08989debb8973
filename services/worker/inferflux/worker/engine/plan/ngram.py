"""N-gram drafts: the tokens that may come next, by what followed the same tokens in prompt and answer (pure).

Prompt lookup (Saxena, 2023): an answer that quotes, corrects or goes on with its prompt repeats runs of it.
Once a run is found it is followed, token by token, until another token comes. So how often what it has comes
next is known without a draft, and for each length of what has agreed so far.
"""

from __future__ import annotations

from itertools import pairwise

from inferflux.worker.engine.kv.envelope import TokenArray

# Of a longer prompt, what is further from its end is not looked up: indexing it takes a step's time.
MOST_INDEXED = 16384


class NgramIndex:
    """Index of the last positions of one sequence's tokens, and pairs of them, and the run that it follows.

    Attributes:
        length: how many of the last tokens agree with the run that is followed; 0: none is.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        # Of a long prompt, tokens before those.
        self._skipped = 0
        # The position after a token, and after a pair of them, where there is a token.
        self._after_token: dict[int, int] = {}
        self._after_pair: dict[tuple[int, int], int] = {}
        # The last two tokens.
        self._pair = (-1, -1)
        # The position of the token that is expected next.
        self._at = 0
        self.length = 0

    def extend(self, tokens: TokenArray, n: int) -> list[tuple[int, bool]]:
        """Take up new tokens.

        Args:
            tokens: the first `n` are all that the sequence has, no fewer than at the last call.

        Returns:
            Of each that was expected: (how many tokens before it agreed with what was followed, whether it
            came).
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
                followed.append((length, is_same))
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
        self._tokens, n = tokens, len(tokens)
        self._after_token.update(zip(tokens, range(1, n), strict=False))
        self._after_pair.update(zip(pairwise(tokens), range(2, n), strict=False))
        if tokens:
            self._pair = (tokens[-2] if n > 1 else -1, tokens[-1])

    def _append(self, token: int) -> None:
        """The last token, and the last pair, have a token after them now."""
        known, last = self._tokens, self._pair[1]
        self._after_token[last] = self._after_pair[self._pair] = len(known)
        known.append(token)
        self._pair = (last, token)

    def _look_up(self) -> None:
        """Follow what the last two tokens were followed by before, or the last alone."""
        at = self._after_pair.get(self._pair)
        if at is not None:
            self._at, self.length = at, 2
            return
        at = self._after_token.get(self._pair[1])
        if at is not None:
            self._at, self.length = at, 1
