"""Where a JSON object ends, found while its text comes (pure)."""

from __future__ import annotations

import re

# What matters outside a string, and inside one.
_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
# The same, or a character that no JSON text has outside a string. Python's parser takes NaN and Infinity.
_OUTSIDE_OF_JSON = re.compile(r'["{}\[\]]|[^\s:,0-9+\-.eEtrufalsnNIity]')


class ObjectScanner:
    """Counts brackets outside of strings. It hardly judges what is between them.

    The first character that it gets is the object's `{`.

    Args:
        is_strict: whether to stop where the object cannot be JSON. Of objects that begin within each other,
            behind a text that is no JSON, two go on at most: one is in a string where the other is not.

    Attributes:
        is_done: the object has ended.
        is_broken: it is no JSON. Nothing more is read.
    """

    def __init__(self, *, is_strict: bool = False) -> None:
        self._outside = _OUTSIDE_OF_JSON if is_strict else _OUTSIDE
        self._depth = 0
        self._is_string = False
        self._is_escaped = False
        self.is_done = False
        self.is_broken = False

    def take(self, text: str, begin: int = 0) -> int:
        """Go on with `text` from `begin` on; returns where what belongs to the object ends."""
        at = begin
        while at < len(text) and not (self.is_done or self.is_broken):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            found = (_INSIDE if self._is_string else self._outside).search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            self._note(found[0])
        return at

    def _note(self, character: str) -> None:
        if character == '"':
            self._is_string = not self._is_string
        elif character == "\\" and self._is_string:
            self._is_escaped = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.is_done = self._depth <= 0
        else:
            self.is_broken = True
