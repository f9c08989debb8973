"""Log-probabilities of a prompt's tokens: all rows of logits of its prefill are read, a few at a time."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inferflux.v1 import tokens_pb2

from .chunk_logprobs import PieceTexts, fill
from .logprobs import log_probabilities

SCORED_ROWS = 32
"""Rows of logits that a step has for prompts, beside those that are sampled: they bound its memory."""


class Scored(Protocol):
    """The part of a sequence that is looked at."""

    tokens: NDArray[np.int32]
    prompt_tokens: int


class PromptScores:
    """The scores found so far, as chunks have them.

    Args:
        n_top: alternatives of each token.
    """

    def __init__(self, n_top: int) -> None:
        self._n_top = n_top
        self.entries: list[tokens_pb2.TokenLogprobs] = []

    def is_complete(self, prompt_tokens: int) -> bool:
        return len(self.entries) >= prompt_tokens

    def add(self, sequence: Scored, first: int, logits: NDArray[np.float32], pieces: PieceTexts) -> None:
        """Take in logits after some tokens of the prompt. What was found before stays, if computed again.

        Args:
            first: position of the first of these tokens.
            logits: of shape (tokens, vocabulary).
        """
        if not self.entries:
            self._put(int(sequence.tokens[0]), 0.0, [], pieces)
        known = len(self.entries) - 1 - first
        end = min(logits.shape[0], sequence.prompt_tokens - 1 - first)
        if known < 0 or known >= end:
            return
        rows = range(known, end)
        tokens = sequence.tokens[first + known + 1 : first + end + 1].tolist()
        found = log_probabilities(logits, rows, tokens, [self._n_top] * len(rows))
        for token, one in zip(tokens, found, strict=True):
            self._put(token, one.chosen, one.top, pieces)

    def _put(self, token: int, logprob: float, top: list[tuple[int, float]], pieces: PieceTexts) -> None:
        entry = tokens_pb2.TokenLogprobs()
        fill(entry, token, logprob, top, pieces)
        if not entry.chosen.text:  # a control token: prompts are told with theirs
            entry.chosen.text = pieces.text(token)
        self.entries.append(entry)
