"""Searches in what other processes have left (pure)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from inferflux.worker.engine.kv.envelope import Header, TokenArray

from .index import BLOCK, common_prefix

# How long what a dead process left is looked for.
SEARCH_LIMIT_S = 2.0
# A search is over once this part of its tokens is found: the last ones may have come after the copy.
_NEARLY_ALL = 7 / 8


@dataclass(slots=True, eq=False)
class Search:
    """Search for a prefix of `tokens` in what other processes left.

    Attributes:
        tokens: ids of shape (n,).
        until_s: on `time.monotonic`; it is over then.
        names: of the files that were found.
        found: most of the first tokens that a file has.
        is_over: whether `changes` has given all that was found.
        is_given_up: whether its request waits no more.
    """

    scope: str
    tokens: TokenArray
    until_s: float = field(default_factory=lambda: time.monotonic() + SEARCH_LIMIT_S)
    names: list[str] = field(default_factory=list)
    found: int = 0
    is_over: bool = False
    is_given_up: bool = False

    @property
    def is_complete(self) -> bool:
        """True if a file was found that has nearly all."""
        return self.has_nearly_all(self.found)

    def has_nearly_all(self, n: int) -> bool:
        """True if a state of the first `n` tokens is what is searched for."""
        return n >= _NEARLY_ALL * len(self.tokens)

    def matched(self, header: Header) -> int:
        """Return how many of the first tokens a state has; 0 if it is not this request's own.

        A request's own state begins as it does, or is its beginning: either may have tokens that the other
        has not. Others that begin alike, with a system prompt, find theirs.
        """
        if header.scope != self.scope:
            return 0
        n = common_prefix(header.tokens[: header.n_past], self.tokens)
        return n if n == min(header.n_past, len(self.tokens)) and n >= BLOCK else 0

    def take(self, name: str, header: Header) -> None:
        """A file is here now."""
        if n := self.matched(header):
            self.names.append(name)
            self.found = max(self.found, n)


class Inheritance(Search):
    """Search for all that dead processes have left in their folders."""

    def __init__(self) -> None:
        super().__init__("", np.empty(0, np.int32))

    @property
    def is_complete(self) -> bool:
        return False  # a process that was killed may have its folder still

    def matched(self, header: Header) -> int:
        return header.n_past
