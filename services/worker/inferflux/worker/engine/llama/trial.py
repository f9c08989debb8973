"""Trials at the start: whether a context goes on after shared or copied state as after what it computed.

No two ways to compute the same logits agree to the last bit: a real model's weights have few bits, and so has
what they are multiplied with. So the two ways are compared from scratch first, with nothing shared or copied.
By how much they differ is rounding. State is good if what follows it differs by no more than that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferflux.common.llama.vocab import Vocab, VocabError

# Few enough for any context, and enough for states to differ.
TRIAL_TOKENS = 24
# Rows of logits that are compared, at most: one row may be close by chance.
TRIAL_ROWS = 8
# Ordinary text: after control tokens even a good model's logits are close to noise.
_TEXT = (
    b"A river begins as rain on high ground. Small streams meet, and the water cuts a valley that grows "
    b"wider towards the sea. People have built towns beside rivers for thousands of years."
)
# A defect turns the logits tens of times as far as rounding does.
_TIMES_ROUNDING = 4.0
# Single precision alone turns them by less.
_LEAST_TURN = 1e-5
# Logits that are turned by more have little in common, whatever the reason.
_MOST_TURN = 0.1
_BEST = 5
# How many of the best tokens may change beyond what rounding changes.
_MISPLACED = 0.25


def trial_tokens(vocab: Vocab) -> NDArray[np.int32]:
    """Token ids of ordinary text, of shape (`TRIAL_TOKENS`,); of all parts of a vocabulary without text."""
    try:
        tokens = vocab.tokenize(_TEXT, add_special=True, parse_special=False)
    except VocabError:
        tokens = []
    if len(tokens) < TRIAL_TOKENS:
        return np.linspace(0, vocab.size - 1, TRIAL_TOKENS).astype(np.int32)
    return np.array(tokens[:TRIAL_TOKENS], np.int32)


@dataclass(frozen=True, slots=True)
class Deviation:
    """Deviation of one set of logits from another.

    Attributes:
        turn: 1 - correlation, the mean over the rows.
        misplaced: the part of each row's best tokens that are not among the best of the other.
    """

    turn: float
    misplaced: float

    def is_rounding(self, rounding: Deviation) -> bool:
        """Return whether it is no more than two ways to compute the same differ by: `rounding`."""
        allowed = min(max(_TIMES_ROUNDING * rounding.turn, _LEAST_TURN), _MOST_TURN)
        return self.turn <= allowed and self.misplaced <= rounding.misplaced + _MISPLACED


def deviation(logits: NDArray[np.float32], expected: NDArray[np.float32]) -> Deviation:
    """Compare logits of the same shape, (rows, vocabulary). What is not finite is as far as can be."""
    if not (np.isfinite(logits).all() and np.isfinite(expected).all()):
        return Deviation(1.0, 1.0)
    one, other = (each.astype(np.float64) - each.mean(-1, keepdims=True) for each in (logits, expected))
    norms = np.sqrt((one * one).sum(-1) * (other * other).sum(-1))
    # Logits that are all alike say nothing.
    cosines = np.divide((one * other).sum(-1), norms, out=np.zeros_like(norms), where=norms > 0)
    best = [np.argsort(-each, axis=-1)[:, :_BEST] for each in (one, other)]
    found = [np.isin(*rows).mean() for rows in zip(*best, strict=True)]
    return Deviation(max(float(1.0 - cosines.mean()), 0.0), float(1.0 - np.mean(found)))
