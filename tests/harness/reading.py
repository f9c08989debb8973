"""Answers read in one part, in many, and by character."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TypeAlias

from inferflux.common.text.answers.parser import AnswerParser
from inferflux.common.text.answers.pieces import CallArguments, CallName, Content, Piece, Reasoning

# Content, reasoning, and calls with their arguments.
Read: TypeAlias = tuple[str, str, list[tuple[str, str]]]


def joined(pieces: list[Piece]) -> Read:
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    calls: list[tuple[str, str]] = []
    for piece in pieces:
        if isinstance(piece, CallName):
            assert piece.index == len(calls)
            calls.append((piece.name, ""))
        elif isinstance(piece, CallArguments):
            assert piece.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.text)
    return content, reasoning, calls


def read(made: AnswerParser, *parts: str, is_cut: bool = False) -> Read:
    pieces = [piece for part in parts for piece in made.push(part)]
    return joined(pieces + made.finish(is_cut=is_cut))


def splits(text: str, *, seeds: int = 3) -> Iterator[list[str]]:
    """The text by character, and in parts of some characters."""
    yield list(text)
    for seed in range(seeds):
        chance, parts, at = random.Random(seed), list[str](), 0
        while at < len(text):
            n = chance.randint(1, 12)
            parts.append(text[at : at + n])
            at += n
        yield parts


def read_in_every_way(made: Callable[[], AnswerParser], text: str, *, is_cut: bool = False) -> Read:
    """Assert that every split gives what the whole gives, and return that."""
    whole = read(made(), text, is_cut=is_cut)
    for parts in splits(text):
        assert read(made(), *parts, is_cut=is_cut) == whole
    return whole
