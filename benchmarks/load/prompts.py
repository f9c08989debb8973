"""Prompts of requests: every request another prompt, every run of the same seed the same ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

Prompt = list[int] | str
"""Token ids, or text that the server tokenizes."""

_COMMON_WORDS = """\
a about after all an and any are as at be been but by can could day did do down each find first for from get
had has have he her him his how if in into is it its like long look made make many may more most my no not
now number of on one or other out over people part said see she so some than that the their them then there
these they this time to two up use water was way we were what when which who will with word would you
"""
_WORDS = _COMMON_WORDS.split()


class PromptSource(Protocol):
    """Prompts by the number of the request."""

    def __getitem__(self, index: int) -> Prompt: ...


@dataclass(frozen=True, slots=True)
class Prompts:
    """Random token ids.

    Attributes:
        length: tokens per prompt.
        token_range: ids are drawn from the first up to, without, the second.
    """

    length: int
    token_range: tuple[int, int]
    seed: int = 0

    def __getitem__(self, index: int) -> list[int]:
        rng = np.random.default_rng((self.seed, index))
        ids: list[int] = rng.integers(*self.token_range, self.length).tolist()
        return ids


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Whole numbers from `low` to `high`, log-normal: most are small, a few are large.

    The median is the geometric mean of the bounds, which lie two standard deviations away. What falls
    outside of them is drawn again.

    Attributes:
        seed: numbers of other seeds are independent of these.
    """

    low: int
    high: int
    seed: tuple[int, ...] = (0,)

    def __getitem__(self, index: int) -> int:
        rng = np.random.default_rng((*self.seed, index))
        middle = (math.log(self.low) + math.log(self.high)) / 2
        deviation = (math.log(self.high) - math.log(self.low)) / 4
        while True:
            value = round(math.exp(rng.normal(middle, deviation)))
            if self.low <= value <= self.high:
                return value


@dataclass(frozen=True, slots=True)
class TextPrompts:
    """Random common English words, of as many characters as `characters` says."""

    characters: LogNormal
    seed: int = 0

    def __getitem__(self, index: int) -> str:
        rng = np.random.default_rng((self.seed, index))
        length = self.characters[index]
        # A word of one letter and a space are the least that a draw adds.
        words = rng.choice(_WORDS, length // 2 + 1)
        return " ".join(words)[:length]


def middle_of(vocabulary_size: int) -> tuple[int, int]:
    """The token range of ordinary text: single bytes and control tokens sit at a vocabulary's two ends."""
    return vocabulary_size // 8, vocabulary_size - vocabulary_size // 64
