"""Letters that look like others, and how a folded text reads by its looks (pure).

Which characters look like a letter of ASCII is Unicode's list of confusables (UTS #39), as the package
`confusable-homoglyphs` has it. A reading replaces characters of a folded text one by one, so places in it are
places in the text. A Greek nu looks like one letter when it is small, and like another as a capital: for such
letters, folded texts have a second reading.

Unlike a skeleton of UTS #39, a reading leaves ASCII as it is: `modern` and `modem` are two words.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Final

from .normal import fold_plain, is_mark, plain

# Beyond, no character is replaced: there are ideographs.
_LAST: Final = 0x1FFFF
# Directions are in the data around letters that are written from right to left.
_DIRECTIONS: Final = dict.fromkeys((0x200E, 0x200F))
# Letters of widely written languages that look like a letter of ASCII in the same words. Others of the Latin
# script are for sounds, or of small languages.
_WRITTEN: Final = frozenset("\u0131")  # dotless i
# A shorter text is found only as it is: a formula with a Greek rho is no attempt to hide three letters.
LEAST_MIXED: Final = 4


class LookAlikes(StrEnum):
    """Places where letters that only look like those of a blocked text count as these."""

    MIXED = "mixed"
    """In a word that has letters of several scripts, as no word of a language has."""
    ANY = "any"
    """Everywhere."""
    NONE = "none"


class Reader:
    """Readings of folded texts, and the check that one that reads like a blocked text counts as it.

    Args:
        ignores_accents: whether a letter with marks is the same as without.
    """

    def __init__(self, look_alikes: LookAlikes, *, ignores_accents: bool) -> None:
        self._look_alikes = look_alikes
        self._bare = _bare() if ignores_accents else {}
        self._first, self._second, self._letters_of_two = _tables(look_alikes, ignores_accents)

    def readings(self, text: str) -> tuple[str, ...]:
        """Readings of a folded text: one, or two that differ. Each is as long as the text."""
        if text.isascii() or not self._first:
            return (text,)
        first = text.translate(self._first)
        if not any(letter in text for letter in self._letters_of_two):
            return (first,)
        return first, text.translate(self._second)

    def is_same(self, text: str, blocked: str) -> bool:
        """True if a folded text counts as a blocked one that has a reading with it in common."""
        if text == blocked:
            return True
        if self._bare:
            text, blocked = text.translate(self._bare), blocked.translate(self._bare)
            if text == blocked:
                return True
        if self._look_alikes is LookAlikes.MIXED:
            return len(text) >= LEAST_MIXED and is_mixed(text)
        return self._look_alikes is LookAlikes.ANY


def is_mixed(text: str) -> bool:
    """True if a word of a text has letters of several scripts."""
    seen = ""
    for character in text:
        script = _script(character)
        if script is None:
            seen = ""
        elif seen and script and script != seen:
            return True
        else:
            seen = script or seen
    return False


@cache
def _tables(look_alikes: LookAlikes, ignores_accents: bool) -> tuple[str, str, str]:
    """Tables of both readings, "" for one that replaces nothing, and the letters that have two."""
    first, second = _bare() if ignores_accents else {}, dict[int, str]()
    if look_alikes is not LookAlikes.NONE:
        small, second = _small_and_capital()
        first = small | {code: small.get(ord(letter), letter) for code, letter in first.items()}
    return (
        _table(first) if first else "",
        _table(first | second) if second else "",
        "".join(map(chr, second)),
    )


def _table(replaced: Mapping[int, str]) -> str:
    """Table for `str.translate`, which looks up what is in a text faster than what is not in a mapping."""
    return "".join(replaced.get(code, chr(code)) for code in range(_LAST + 1))


@cache
def _script(character: str) -> str | None:
    """Script of a letter: the first word of its name in Unicode. "" of what is in any script, and None
    between words.
    """
    if character.isascii():
        return "LATIN" if character.isalpha() else "" if character.isdigit() or character == "_" else None
    small, capital = _small_and_capital()
    code = ord(character)
    if not (character.isalpha() or code in small or code in capital):
        return "" if character.isalnum() or is_mark(character) else None
    script = unicodedata.name(character, "").partition(" ")[0]
    if script == "LATIN" and code in small and character not in _WRITTEN:
        return "LATIN, FOR SOUNDS"
    return "" if script == "MODIFIER" else script


@cache
def _small_and_capital() -> tuple[dict[int, str], dict[int, str]]:
    """The letters of ASCII that folded characters look like: small or of one case, and as capitals where that
    is another.
    """
    # Of each, by how surely it looks so: as it is, in another spelling, as a capital.
    found: dict[int, list[tuple[int, str]]] = {}
    for character, letter in _confusables():
        folded = fold_plain(plain(character))
        if len(folded) != 1 or folded.isascii():
            continue
        is_capital = character.isupper()
        # Unicode has a small l stand for what looks like a capital I.
        looks = "i" if is_capital and letter == "l" else letter.lower()
        found.setdefault(ord(folded), []).append((2 if is_capital else int(character != folded), looks))
    small = {code: min(looks)[1] for code, looks in found.items()}
    capital = {code: max(looks)[1] for code, looks in found.items()}
    for code, bare in _bare().items():
        # A letter with an accent that is of ASCII but for it is another letter, and no look-alike.
        if not bare.isascii() and code not in small and ord(bare) in small:
            small[code], capital[code] = small[ord(bare)], capital[ord(bare)]
    return small, {code: looks for code, looks in capital.items() if looks != small[code]}


def _confusables() -> Iterator[tuple[str, str]]:
    """Characters that look like a letter of ASCII, each with it."""
    source = files("confusable_homoglyphs") / "confusables.json"
    for letter, others in sorted(json.loads(source.read_bytes()).items()):
        if len(letter) == 1 and letter.isascii() and letter.isalpha():
            for other in others:
                character = str(other["c"]).translate(_DIRECTIONS)
                if len(character) == 1 and not character.isascii():
                    yield character, letter


@cache
def _bare() -> dict[int, str]:
    """Folded letters that have marks, each without: those of marks that any script may have."""
    found: dict[int, str] = {}
    for code in range(0x80, _LAST + 1):
        character = chr(code)
        if not unicodedata.decomposition(character) or fold_plain(plain(character)) != character:
            continue
        decomposed = unicodedata.normalize("NFD", character)
        letter, marks = decomposed[0], decomposed[1:]
        if marks and letter.isalpha() and all(map(is_mark, marks)):
            found[code] = letter
    return found
