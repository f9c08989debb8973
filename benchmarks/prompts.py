"""Prompts of random token ids: every request another one, every run of the same seed the same ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Prompts:
    """A source of prompts.

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


def middle_of(vocabulary_size: int) -> tuple[int, int]:
    """The token range of ordinary text: single bytes and control tokens sit at a vocabulary's two ends."""
    return vocabulary_size // 8, vocabulary_size - vocabulary_size // 64
