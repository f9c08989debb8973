"""The forms of a text in which it is matched, whole or in pieces (pure).

`plain` is NFKC without characters that cannot be seen; `folded` is that with case folded, without marks that
are of no script and that make no letter with the one before them, as strokes through it. A unit is a piece
of text whose forms do not depend on what is around it: a character with the marks that follow it. So the
forms of a text are those of its units, one after the other. A unit has `MAX_UNIT` characters at most: the
marks beyond form units of their own.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Final

# Unicode's Default_Ignorable_Code_Point: zero-width characters, joiners, directions, fillers, tags, and the
# selectors of variants.
_IGNORED: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
# Unicode's blocks of marks that any script may have. Enclosing ones are no part of the character before them.
_MARKS: Final = re.compile(
    "[\u0300-\u036f\u1ab0-\u1abd\u1abf-\u1ace\u1dc0-\u1dff\u20d0-\u20dc\u20e1\u20e5-\u20f0\ufe20-\ufe2f]+"
)
# Vowels and finals of Hangul, which form syllables with what is before them.
_JAMO: Final = frozenset(map(chr, (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))))
# Beyond, no character is composed of two.
_LAST_COMPOSED: Final = 0x20000
# No letter of a real text has more marks; without a bound, marks alone would be held back for ever.
MAX_UNIT: Final = 64
# Characters that are normalized at once.
_AT_ONCE: Final = 512


def plain(text: str) -> str:
    """NFKC, without characters that cannot be seen."""
    if text.isascii():
        return text
    return _nfkc(_IGNORED.sub("", text))


def folded(text: str) -> str:
    """`plain` with case folded, without marks that make no letter."""
    return fold_plain(plain(text))


def fold_plain(text: str) -> str:
    """The folded form of a text that is plain."""
    if text.isascii():
        return text.lower()
    composed = _nfkc(text.casefold())
    bare = _MARKS.sub("", composed)
    return composed if bare == composed else _nfkc(bare)


def is_mark(character: str) -> bool:
    """True if it is a mark that any script may have."""
    return _MARKS.fullmatch(character) is not None


def _nfkc(text: str) -> str:
    """NFKC in linear time: marks are put in order by an insertion sort, so a text of marks alone is cut."""
    if len(text) <= _AT_ONCE:
        return unicodedata.normalize("NFKC", text)
    pieces: list[str] = []
    start = 0
    while start < len(text):
        end, latest = start + _AT_ONCE, min(len(text), start + _AT_ONCE + MAX_UNIT)
        while end < latest and not begins_unit(text[end]):
            end += 1
        pieces.append(unicodedata.normalize("NFKC", text[start:end]))
        start = end
    return "".join(pieces)


def units(text: str) -> list[str]:
    """Cut a text into units. The last one may go on with the next piece of the text, the others do not."""
    if text.isascii():
        return list(text)
    starts = [0] if text else []
    for i, character in enumerate(text[1:], 1):
        if begins_unit(character) or i - starts[-1] == MAX_UNIT:
            starts.append(i)
    return [text[i:j] for i, j in zip(starts, [*starts[1:], len(text)], strict=True)]


def begins_unit(character: str) -> bool:
    """True if a character is never composed or reordered with what is before it, and is seen."""
    return character.isascii() or _begins_unit(character)


@cache
def _begins_unit(character: str) -> bool:
    if _IGNORED.fullmatch(character):
        return False
    first = unicodedata.normalize("NFKD", character)[0]
    return not (unicodedata.combining(character) or unicodedata.combining(first) or first in _seconds())


@cache
def _seconds() -> frozenset[str]:
    """Characters that are no marks and are composed with the one before them."""
    found = set(_JAMO)
    for code in range(0x80, _LAST_COMPOSED):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            second = chr(int(parts[1], 16))
            if not unicodedata.combining(second):
                found.add(second)
    return frozenset(found)
