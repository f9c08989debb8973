"""A modelled worker's cache of the prompts and answers it has computed (pure)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PromptCache:
    """Token sequences of finished requests, by scope: the least recently used ones go first.

    A sequence that a longer one begins with is not kept beside it.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, tuple[int, ...]], None] = OrderedDict()
        self.cells = 0

    def match(self, scope: str, tokens: Sequence[int]) -> int:
        """Tokens of the longest kept beginning."""
        return max((_shared(kept, tokens) for owner, kept in self._kept if owner == scope), default=0)

    def use(self, scope: str, tokens: Sequence[int]) -> int:
        """As `match`, for a request that begins to run: a sequence it goes on with becomes its own."""
        best = max(
            ((_shared(kept, tokens), (owner, kept)) for owner, kept in self._kept if owner == scope),
            default=None,
        )
        if best is None or not best[0]:
            return 0
        matched, entry = best
        if matched == len(entry[1]):
            self._drop(entry)
        else:
            self._kept.move_to_end(entry)
        return matched

    def keep(self, scope: str, tokens: Sequence[int]) -> None:
        """Keep what a request has computed."""
        entry = (scope, tuple(tokens))
        if entry in self._kept:
            self._kept.move_to_end(entry)
        elif tokens:
            self._kept[entry] = None
            self.cells += len(tokens)

    def shrink(self, cells: int) -> None:
        """Free this many cells, or all there are."""
        goal = max(0, self.cells - cells)
        while self.cells > goal:
            self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        self._kept.clear()
        self.cells = 0

    def __len__(self) -> int:
        return len(self._kept)

    def _drop(self, entry: tuple[str, tuple[int, ...]]) -> None:
        del self._kept[entry]
        self.cells -= len(entry[1])


def _shared(kept: Sequence[int], tokens: Sequence[int]) -> int:
    for at, (one, other) in enumerate(zip(kept, tokens, strict=False)):
        if one != other:
            return at
    return min(len(kept), len(tokens))
