"""Incremental scanner for the end of a bracketed text (pure)."""

from __future__ import annotations

import re
from typing import Final

from .literals import GEMMA_QUOTE

_INSIDE: Final = {quote: re.compile(rf"[{quote}\\]") for quote in "\"'"}
_OUTSIDE = re.compile(r"[\"'{}\[\]()]")
# The same, or a character that no JSON text has outside a string, however carelessly it is written.
_OUTSIDE_OF_JSON = re.compile(r"[\"'{}\[\]]|[^\s\w:,+\-.$]")
_OUTSIDE_OF_GEMMA = re.compile(re.escape(GEMMA_QUOTE) + r"|[{}\[\]]|<")


class BracketScanner:
    """Counts brackets outside of strings. It hardly judges what is between them.

    The first character that it gets is the opening bracket.

    Args:
        is_strict: whether to stop where a JSON object cannot go on.

    Attributes:
        is_done: the text has ended.
        is_broken: it is no JSON. Nothing more is read.
    """

    def __init__(self, *, is_strict: bool = False) -> None:
        self._outside = _OUTSIDE_OF_JSON if is_strict else _OUTSIDE
        self._depth = 0
        self._quote = ""
        self._is_escaped = False
        self.is_done = False
        self.is_broken = False

    def take(self, text: str, begin: int = 0) -> int:
        """Go on with `text` from `begin` on; returns where what belongs to it ends."""
        at = begin
        while at < len(text) and not (self.is_done or self.is_broken):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            found = (_INSIDE[self._quote] if self._quote else self._outside).search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            self._note(found[0])
        return at

    def _note(self, character: str) -> None:
        if character == "\\" and self._quote:
            self._is_escaped = True
        elif character in "\"'":
            self._quote = "" if self._quote else character
        elif character in "{[(":
            self._depth += 1
        elif character in "}])":
            self._depth -= 1
            self.is_done = self._depth <= 0
        else:
            self.is_broken = True


class GemmaScanner(BracketScanner):
    """The same for Gemma's notation, whose quotes have five characters."""

    def take(self, text: str, begin: int = 0) -> int:
        at = begin
        while at < len(text) and not self.is_done:
            if self._quote:
                end = text.find(GEMMA_QUOTE, at)
                if end < 0:
                    return max(at, len(text) - _overlap(text, at))
                at, self._quote = end + len(GEMMA_QUOTE), ""
                continue
            found = _OUTSIDE_OF_GEMMA.search(text, at)
            if found is None:
                return len(text)
            if found[0] == "<" and GEMMA_QUOTE.startswith(text[found.start() :]):
                return found.start()
            at = found.end()
            if found[0] == GEMMA_QUOTE:
                self._quote = GEMMA_QUOTE
            elif found[0] != "<":
                self._note(found[0])
        return at


def _overlap(text: str, at: int) -> int:
    """Length of the longest end of `text` that begins a quote."""
    longest = min(len(text) - at, len(GEMMA_QUOTE) - 1)
    return next((n for n in range(longest, 0, -1) if GEMMA_QUOTE.startswith(text[len(text) - n :])), 0)
