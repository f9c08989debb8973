"""Text that comes in parts, read forward, and again from a mark (pure).

Every character is copied a bounded number of times, however small the parts are. What reads is a
generator: it yields where it needs more text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Sequence
from typing import Final, TypeAlias, TypeVar

from .scanner import BracketScanner

_T = TypeVar("_T")
# What reads, and needs more text at each yield.
Steps: TypeAlias = Generator[None, None, _T]

# How far reading looks ahead.
AHEAD: Final = 400
_BLANKS = re.compile(r"\s*")


class Markers:
    """Texts to look for, of which the leftmost counts, and of those that begin there the longest."""

    def __init__(self, texts: Collection[str]) -> None:
        known = sorted({text for text in texts if text}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, known))) if known else None
        self._beginnings = frozenset(text[:n] for text in known for n in range(1, len(text)))
        self._longest = len(known[0]) if known else 0

    def __bool__(self) -> bool:
        return self._pattern is not None

    def find(self, text: str, at: int, *, is_final: bool) -> tuple[int, str | None]:
        """Place of the first marker, and the marker; None in its stead where more text has to tell.

        Without one the place is the end of the text.
        """
        found = self._pattern.search(text, at) if self._pattern else None
        begin, end = (found.start(), found[0]) if found else (len(text), None)
        if not is_final:
            for n in range(min(self._longest - 1, len(text) - at), 0, -1):
                if text[len(text) - n :] in self._beginnings and len(text) - n <= begin:
                    return len(text) - n, None
        return begin, end


class Tape:
    """A text's unread rest, and what of it may be read again.

    Attributes:
        is_final: nothing follows.
        is_cut: the answer has ended by its length: what is not complete is no call.
        has_run_out: something that was awaited may have followed.
    """

    def __init__(self) -> None:
        self._text = ""
        # What comes next.
        self._at = 0
        # Of what is not in `_text` any more.
        self._n_before = 0
        # Where reading may go back to: in `_text`, or before it, in the parts that are kept.
        self._mark: int | None = None
        self._kept: list[str] = []
        self.is_final = self.is_cut = False
        self.has_run_out = False

    def __bool__(self) -> bool:
        """True if something is not read yet."""
        return self._at < len(self._text)

    @property
    def next(self) -> str:
        """The next character; "" at the end."""
        return self._text[self._at : self._at + 1]

    @property
    def position(self) -> int:
        """Number of characters that have been read."""
        return self._n_before + self._at

    def peek(self, n: int) -> str:
        """Return what comes next, at most `n` characters."""
        return self._text[self._at : self._at + n]

    def feed(self, part: str) -> None:
        """Add to the end. What is not read yet is copied: readers leave no more than a part of a marker."""
        if self._mark is not None:
            if self._at > self._mark:
                self._kept.append(self._text[self._mark : self._at])
            self._mark = 0
        self._n_before += self._at
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
        """Go back to the mark, which stays."""
        if self._mark is None:
            raise RuntimeError("nothing is marked")
        if self._kept:
            kept = "".join(self._kept)
            self._text = kept + self._text[self._mark :]
            self._n_before -= len(kept)
            self._kept = []
            self._mark = 0
        self._at = self._mark

    def starts_with(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def may_become(self, text: str) -> bool:
        """Return whether all that is left is a beginning of `text`, but not all of it, and more may come."""
        left = len(self._text) - self._at
        if self.is_final or left > len(text):
            return False
        if left < len(text) and self._text.endswith(text[:left]):
            return True
        return self._text.endswith("\ufffd") and self._ends_within(text)

    def _ends_within(self, text: str) -> bool:
        """Return whether all that is left is a beginning of `text`, cut within a character perhaps."""
        return text.startswith(self.peek(len(text) + 1).removesuffix("\ufffd"))

    def skip(self, n: int) -> None:
        self._at += n

    def skip_blanks(self) -> None:
        found = _BLANKS.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def take(self, n: int) -> str:
        text = self.peek(n)
        self._at += len(text)
        return text

    def take_all(self) -> str:
        return self.take(len(self._text) - self._at)

    def take_before(self, markers: Markers) -> tuple[str, str | None]:
        """Take what comes before the next marker, and name that marker, which is not read.

        Without one: what cannot be the beginning of one.
        """
        at, marker = markers.find(self._text, self._at, is_final=self.is_final)
        text = self._text[self._at : at]
        self._at = at
        return text, marker

    def drop_before(self, stops: Markers) -> Steps[None]:
        """Drop what comes before the first of `stops`, or the end."""
        while True:
            _, stop = self.take_before(stops)
            if stop or self.is_final:
                return
            yield

    def take_object(self, scanner: BracketScanner) -> str:
        """Go on with an object, up to its end."""
        begin = self._at
        self._at = scanner.take(self._text, begin)
        return self._text[begin : self._at]

    def blanks(self) -> Steps[None]:
        """Skip blanks."""
        while True:
            self.skip_blanks()
            if self or self.is_final:
                return
            yield

    def taking(self, text: str) -> Steps[bool]:
        """Return whether `text` comes next; it is read then."""
        while self.may_become(text):
            yield
        is_next = self.starts_with(text)
        if is_next:
            self._at += len(text)
        self.has_run_out |= self.is_final and not is_next and self._ends_within(text)
        return is_next

    def taking_one(self, texts: Collection[str]) -> Steps[str]:
        """The longest of the texts that come next, read then; "" for none."""
        while any(map(self.may_become, texts)):
            yield
        found = max(filter(self.starts_with, texts), key=len, default="")
        if self.is_final and not found:
            self.has_run_out |= any(map(self._ends_within, texts))
        self._at += len(found)
        return found

    def taking_until(self, text: str, most: int) -> Steps[str | None]:
        """Take what comes before `text`, which is read too; None beyond `most` characters."""
        while True:
            ahead = self.peek(most + len(text))
            at = ahead.find(text)
            if at >= 0:
                self._at += at + len(text)
                return ahead[:at]
            if self.is_final or len(ahead) >= most + len(text):
                self.has_run_out |= len(ahead) < most + len(text)
                return None
            yield

    def skipping(self, texts: Sequence[str]) -> Steps[None]:
        """Read what of these markers comes next; blanks before one too."""
        for text in texts:
            blanks = 0
            while True:
                ahead = self.peek(AHEAD)
                rest = ahead.lstrip()
                blanks = len(ahead) - len(rest)
                if rest.startswith(text):
                    self.skip(blanks + len(text))
                    break
                may_come = not rest or text.startswith(rest)
                if not may_come or self.is_final or len(ahead) >= AHEAD:
                    if may_come and rest and self.is_final:
                        self.skip(len(ahead))  # cut
                    break
                yield

    def until(self, stops: Markers) -> Steps[str | None]:
        """Take what comes before one of the stops, which is not read; None where none comes."""
        parts: list[str] = []
        while True:
            text, stop = self.take_before(stops)
            parts.append(text)
            if stop:
                return "".join(parts)
            if self.is_final:
                return None
            yield
