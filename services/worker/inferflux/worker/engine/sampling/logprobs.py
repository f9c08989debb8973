"""Logits to the logarithms of probabilities, for several rows at a time (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .sampling import Logits
from .sampling_rows import BAD, top_of_rows

# Logits whose exponentials are computed at a time: they stay in the processor's cache.
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural logarithms of the probabilities of some tokens, before any sampling parameter.

    Attributes:
        chosen: of the token that was chosen.
        top: (id, logarithm) of the most likely ones, most likely first.
    """

    chosen: float
    top: list[tuple[int, float]]


def logprobs_of(logits: Logits, tokens: Sequence[int], n_top: Sequence[int | None]) -> list[Logprobs | None]:
    """Return the log-probabilities of the token of each row of a matrix of shape (rows, vocabulary); None
    where none are wanted, and where no token was chosen.

    Args:
        tokens: of the rows, `BAD` where none was chosen.
        n_top: how many of the most likely tokens each row wants; None where it wants nothing.
    """
    found: list[Logprobs | None] = [None] * len(tokens)
    wanted = [(row, tokens[row], n) for row, n in enumerate(n_top) if n is not None and tokens[row] != BAD]
    if wanted:
        rows, chosen, tops = zip(*wanted, strict=True)
        for row, logprobs in zip(rows, log_probabilities(logits, rows, chosen, tops), strict=True):
            found[row] = logprobs
    return found


def log_probabilities(
    logits: Logits, rows: Sequence[int], chosen: Sequence[int], n_top: Sequence[int]
) -> list[Logprobs]:
    """Return the log-probabilities of each of these rows of a matrix of shape (rows, vocabulary), which are
    finite.

    Args:
        chosen: a token of each row.
        n_top: how many of the most likely tokens each row wants.
    """
    if not rows:
        return []
    of = np.fromiter(rows, np.int64, len(rows))
    top = top_of_rows(logits, rows, min(max(1, *n_top), logits.shape[1]))
    totals = _log_sums(logits, of, top.logits[:, 0])
    of_chosen = (logits[of, np.fromiter(chosen, np.int64, len(rows))] - totals).tolist()
    of_top = (top.logits - totals[:, None]).tolist()
    ids = top.ids.tolist()
    return [
        Logprobs(of_chosen[i], list(zip(ids[i][:n], of_top[i][:n], strict=True))) for i, n in enumerate(n_top)
    ]


def _log_sums(logits: Logits, rows: NDArray[np.int64], peaks: Logits) -> NDArray[np.float64]:
    """ln(sum(exp(row))) of each of these rows; `peaks` are their largest logits."""
    sums = np.empty(rows.shape[0])
    at_a_time = max(_BLOCK // logits.shape[1], 1)
    for first in range(0, rows.shape[0], at_a_time):
        block = slice(first, first + at_a_time)
        weights = logits[rows[block]]
        weights -= peaks[block, None]
        np.exp(weights, out=weights)
        sums[block] = weights.sum(axis=1)
    result: NDArray[np.float64] = np.log(sums) + peaks
    return result
