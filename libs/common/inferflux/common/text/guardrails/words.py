"""Finds any of many words in a text at once, by automata of Aho and Corasick (pure).

An automaton is made, and looks at a piece of a text, in one call during which no other thread runs. So there
are several of bounded size, and a long text is looked at in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from typing import Any, Final, Generic, TypeVar

import ahocorasick

# Bytes of words in one automaton, and of a text that it looks at in one call.
_WORDS_AT_ONCE: Final = 1 << 18
_TEXT_AT_ONCE: Final = 1 << 15

T = TypeVar("T")


class WordFinder(Generic[T]):
    """Finds words, and what is known of each.

    Args:
        words: none is empty.
    """

    def __init__(self, words: Mapping[str, T]) -> None:
        self._automata = [_automaton(part) for part in _parts(words)]
        self._longest = max(map(len, words), default=0)
        self._first_characters = frozenset(word[0] for word in words)

    def ends(self, text: str) -> Iterator[tuple[int, T]]:
        """Ends of words in a text, in order, each with the value stored for its word."""
        data = _bytes(text)
        # Characters and bytes up to the last end.
        end, end_byte = 0, 0
        found = (_ends(automaton, data) for automaton in self._automata)
        for last, known in merge(*found, key=_place):
            end += _n_characters(data[end_byte : last + 1])
            end_byte = last + 1
            yield end, known

    def open_end(self, text: str) -> int:
        """Start of the longest end of a text that a word begins with; without one, its length."""
        for start in range(max(0, len(text) - self._longest), len(text)):
            if text[start] in self._first_characters and self._begins_with(_bytes(text[start:])):
                return start
        return len(text)

    def _begins_with(self, data: str) -> bool:
        return any(automaton.longest_prefix(data) == len(data) for automaton in self._automata)


def _parts(words: Mapping[str, T]) -> Iterator[Sequence[tuple[str, T]]]:
    """The words in parts of about `_WORDS_AT_ONCE` bytes."""
    part: list[tuple[str, T]] = []
    size = 0
    for word, known in words.items():
        part.append((word, known))
        size += len(_bytes(word))
        if size >= _WORDS_AT_ONCE:
            yield part
            part, size = [], 0
    if part:
        yield part


def _automaton(words: Sequence[tuple[str, T]]) -> Any:
    automaton = ahocorasick.Automaton()
    for word, known in words:
        automaton.add_word(_bytes(word), known)
    automaton.make_automaton()
    return automaton


def _ends(automaton: Any, data: str) -> Iterator[tuple[int, Any]]:
    """The last byte of each word, in order."""
    search = automaton.iter(data[:_TEXT_AT_ONCE])
    yield from search
    for start in range(_TEXT_AT_ONCE, len(data), _TEXT_AT_ONCE):
        search.set(data[start : start + _TEXT_AT_ONCE], False)
        yield from search


def _place(found: tuple[int, Any]) -> int:
    return found[0]


def _bytes(text: str) -> str:
    """UTF-8, a character for each byte. The automaton looks at the children of a state one by one, and there
    are scripts of thousands of letters.
    """
    return text if text.isascii() else text.encode().decode("latin-1")


def _n_characters(data: str) -> int:
    """Number of characters that these bytes stand for."""
    return len(data) if data.isascii() else len(data.encode("latin-1").decode())
