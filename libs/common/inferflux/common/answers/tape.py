"""Text that comes in parts, read forward, and again from a mark (pure).

Every character is copied a bounded number of times, however small the parts are.
"""

from __future__ import annotations

import re

from .json_scanner import ObjectScanner

_BLANKS = re.compile(r"\s*")


class Tape:
    """What of a text is not read yet, and what of it may be read again."""

    def __init__(self) -> None:
        self._text = ""
        # What comes next.
        self._at = 0
        # Where reading may go back to: in `_text`, or before it, in the parts that are kept.
        self._mark: int | None = None
        self._kept: list[str] = []

    def __bool__(self) -> bool:
        """Whether something is not read yet."""
        return self._at < len(self._text)

    @property
    def next(self) -> str:
        """The next character; "" at the end."""
        return self._text[self._at : self._at + 1]

    def feed(self, part: str) -> None:
        """Add to the end. What is not read yet is copied: readers leave no more than a part of a marker."""
        if self._mark is not None:
            if self._at > self._mark:
                self._kept.append(self._text[self._mark : self._at])
            self._mark = 0
        self._text = self._text[self._at :] + part if self else part
        self._at = 0

    def mark(self) -> None:
        """Reading may go back to here from now on."""
        self._mark = self._at
        self._kept = []

    def unmark(self) -> None:
        """Reading will not go back."""
        self._mark = None
        self._kept = []

    def rewind(self) -> None:
        """Go back to the mark."""
        if self._mark is None:
            raise RuntimeError("nothing is marked")
        if self._kept:
            self._text = "".join(self._kept) + self._text[self._mark :]
            self._mark = 0
        self._at = self._mark
        self.unmark()

    def starts_with(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def may_become(self, text: str) -> bool:
        """Whether all that is left is a beginning of `text`, but not all of it."""
        left = len(self._text) - self._at
        return left < len(text) and self._text.endswith(text[:left])

    def skip(self, n: int) -> None:
        self._at += n

    def skip_blanks(self) -> None:
        found = _BLANKS.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def take_until(self, marker: str, *, is_final: bool) -> tuple[str, bool]:
        """What comes before `marker`, which is read too. Without one: what cannot be its beginning.

        Args:
            is_final: whether nothing follows: then it has no beginning either.

        Returns:
            The text, and whether the marker was found.
        """
        at = self._text.find(marker, self._at)
        end = at if at >= 0 else len(self._text) - (0 if is_final else self._overlap(marker))
        text = self._text[self._at : end]
        self._at = end if at < 0 else end + len(marker)
        return text, at >= 0

    def take_all(self) -> str:
        text = self._text[self._at :]
        self._at = len(self._text)
        return text

    def take_object(self, scanner: ObjectScanner) -> str:
        """Go on with an object, up to its end."""
        begin = self._at
        self._at = scanner.take(self._text, begin)
        return self._text[begin : self._at]

    def _overlap(self, marker: str) -> int:
        """Length of the longest end of the text with which `marker` begins."""
        longest = min(len(self._text) - self._at, len(marker) - 1)
        return next((n for n in range(longest, 0, -1) if self._text.endswith(marker[:n])), 0)
