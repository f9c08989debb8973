"""Compiled rules, and their findings in a text (pure).

Blocked texts are found all at once, in time that grows with the text alone. Patterns are RE2's: it never goes
back, so no pattern takes more than linear time.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from heapq import merge
from typing import Any

import re2

from inferflux.common.contract.errors import InvalidArgument

from .lookalikes import Reader
from .normal import fold_plain, folded, plain
from .rules import RuleSet
from .words import WordFinder

# Of one pattern's program and the states that it keeps while it searches.
_PATTERN_BYTES = 2 << 20


class Kind(StrEnum):
    """Kind of the rule that a text breaks."""

    BLOCKED = "blocked"
    PATTERN = "pattern"
    CHARACTERS = "max_characters"
    TOKENS = "max_tokens"


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """The first thing that rules find in a text.

    Attributes:
        index: of the blocked text or pattern in its set; 0 for sizes.
        of: the name of the set.
        most: of sizes: how many there may be.
    """

    kind: Kind
    index: int = 0
    of: str = ""
    most: int = 0

    @property
    def name(self) -> str:
        """Name in audit lines: which rule of which set, never its text."""
        is_text = self.kind in (Kind.BLOCKED, Kind.PATTERN)
        return f"{self.of} {self.kind}[{self.index}]" if is_text else f"{self.of} {self.kind}"


@dataclass(frozen=True, slots=True)
class Match:
    """Match of a blocked text in a folded one: characters [start, end)."""

    start: int
    end: int
    index: int
    needs_end: bool
    """True if it counts only where no word goes on at `end`."""


class CompiledRules:
    """Rules ready for use, by any number of texts and threads.

    Args:
        name: of the set.
        field: what a pattern that cannot be used is named after.

    Raises:
        InvalidArgument: a pattern is no regular expression of RE2, or too large; names its field.
    """

    def __init__(self, rules: RuleSet, name: str = "", *, field: str = "rules") -> None:
        self.rules = rules
        self.name = name
        self.patterns = [_compiled(text, f"{field}.patterns[{i}]") for i, text in enumerate(rules.patterns)]
        self.n_steps = sum(pattern.programsize for pattern in self.patterns)
        """Steps of all patterns, as RE2 compiles them. Each character takes as many at the most."""
        self._reader = Reader(rules.look_alikes, ignores_accents=rules.ignores_accents)
        words = _words(rules, self._reader)
        self.size = sum(map(len, words)) + sum(map(len, rules.patterns))
        """Characters of all rules, folded."""
        self._finder = WordFinder(words)

    def check(self, text: str, n_tokens: int) -> Finding | None:
        """First finding in a prompt; None if it may pass.

        Args:
            n_tokens: of the prompt.
        """
        rules = self.rules
        if rules.max_characters and len(text) > rules.max_characters:
            return Finding(Kind.CHARACTERS, of=self.name, most=rules.max_characters)
        if rules.max_tokens and n_tokens > rules.max_tokens:
            return Finding(Kind.TOKENS, of=self.name, most=rules.max_tokens)
        if not rules.has_texts:
            return None
        seen = plain(text)
        return self._find_blocked(fold_plain(seen)) or self._find_pattern(seen)

    def _find_blocked(self, text: str) -> Finding | None:
        for match in self.matches(text):
            if not (match.needs_end and match.end < len(text) and is_word(text[match.end])):
                return Finding(Kind.BLOCKED, match.index, self.name)
        return None

    def _find_pattern(self, text: str) -> Finding | None:
        data = text.encode() if self.patterns else b""
        for i, pattern in enumerate(self.patterns):
            if pattern.search(data) is not None:
                return Finding(Kind.PATTERN, i, self.name)
        return None

    def matches(self, text: str, before: str = "") -> Iterator[Match]:
        """Matches of blocked texts in a folded text, by their ends. Text behind it is not looked at.

        Args:
            before: the character before the text; "" at its beginning.
        """
        readings = self._reader.readings(text)
        ends = (self._finder.ends(reading) for reading in readings)
        for end, found in merge(*ends, key=_end) if len(readings) > 1 else next(ends):
            for blocked, index, needs_begin, needs_end in found:
                start = end - len(blocked)
                previous = text[start - 1] if start else before
                if needs_begin and previous and is_word(previous):
                    continue
                if self._reader.is_same(text[start:end], blocked):
                    yield Match(start, end, index, needs_end)

    def undecided(self, text: str) -> int:
        """Start of the longest end of a folded text that a blocked one begins with; else its length."""
        return min(map(self._finder.open_end, self._reader.readings(text)))


def check_all(sets: Iterable[CompiledRules], text: str, n_tokens: int) -> Finding | None:
    """First finding in a prompt by several sets; None if it may pass."""
    findings = (rules.check(text, n_tokens) for rules in sets)
    return next((finding for finding in findings if finding is not None), None)


def is_word(character: str) -> bool:
    """True if a character is part of a word: a letter, a digit, `_`, or a mark on one."""
    if character.isalnum() or character == "_":
        return True
    return not character.isascii() and unicodedata.category(character)[0] == "M"


def _compiled(pattern: str, field: str) -> Any:
    options = re2.Options()
    options.max_mem = _PATTERN_BYTES
    options.log_errors = False
    options.never_capture = True
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0].decode("utf-8", "replace") if error.args else "it is none"
        raise InvalidArgument(f"no regular expression of RE2: {why}", field=field) from None
    if compiled.search("") is not None:
        raise InvalidArgument("the pattern matches the empty text, and so every text", field=field)
    return compiled


# How a word is blocked: the word, its index, whether no word may go on before it, and none after it.
_Way = tuple[str, int, bool, bool]


def _words(rules: RuleSet, reader: Reader) -> dict[str, list[_Way]]:
    """Readings of blocked texts, folded. Texts that read the same are one word, blocked in several ways."""
    words: dict[str, list[_Way]] = {}
    for index, entry in enumerate(rules.blocked):
        text = folded(entry.text)
        needs_begin, needs_end = (entry.is_word and is_word(text[i]) for i in (0, -1))
        for reading in reader.readings(text):
            words.setdefault(reading, []).append((text, index, needs_begin, needs_end))
    return words


def _end(found: tuple[int, list[_Way]]) -> int:
    return found[0]
