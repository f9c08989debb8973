"""Where a JSON object ends, found while its text comes (pure)."""

from __future__ import annotations

import re

# What matters outside a string, and inside one.
_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')


class ObjectScanner:
    """Counts brackets outside of strings. It does not judge what is between them.

    The first character that it gets is the object's `{`.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._is_string = False
        self._is_escaped = False
        self.is_done = False

    def take(self, text: str) -> int:
        """Go on with `text`; returns how much of it belongs to the object."""
        at = 0
        while at < len(text) and not self.is_done:
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            found = (_INSIDE if self._is_string else _OUTSIDE).search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            self._note(found[0])
        return at

    def _note(self, character: str) -> None:
        if character == '"':
            self._is_string = not self._is_string
        elif character == "\\":
            self._is_escaped = True
        elif character in "{[":
            self._depth += 1
        else:
            self._depth -= 1
            self.is_done = self._depth <= 0
