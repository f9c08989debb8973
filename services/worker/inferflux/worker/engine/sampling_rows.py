"""From a matrix of logits to a token id for each row.

A call of numpy costs about a microsecond however few numbers it is for, so rows with the same top-k are
sampled together. Every other row goes through `Sampler.choose_adjusted`. Either way gives the same token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import noise
from .sampling import BadLogits, Ids, Logits, Sampler, scaled, top_ids

BAD = -1
"""In place of a token id: the row has no finite choice."""

# Fewer rows are as fast one by one.
_FEWEST_ROWS = 3
# Where more groups than this times k reach a row's bound, most logits are equal: the row is sorted by itself.
_MOST_GROUPS_PER_K = 4
_SIGN = np.uint32(1 << 31)
_PADDING = np.uint64((1 << 64) - 1)


def choose_tokens(logits: Logits, samplers: Sequence[Sampler], indices: Sequence[int]) -> list[int]:
    """The token of each row, `BAD` where none can be chosen.

    Args:
        logits: of shape (rows, vocabulary), left unchanged.
        samplers: one for each row.
        indices: of the tokens, counted from the first that was generated.
    """
    with _adjusted(logits, samplers):
        if all(sampler.is_greedy for sampler in samplers):
            return _best(logits)
        tokens = [BAD] * len(samplers)
        together, alone = _by_top_k(samplers, logits.shape[1])
        for k, rows in together.items():
            found = _choose_of_top_k(logits, rows, k, [samplers[r] for r in rows], [indices[r] for r in rows])
            for row, token in zip(rows, found, strict=True):
                tokens[row] = token
        for row in alone:
            tokens[row] = _choose_alone(logits[row], samplers[row], indices[row])
        return tokens


def _by_top_k(samplers: Sequence[Sampler], vocabulary: int) -> tuple[dict[int, list[int]], list[int]]:
    """(rows that are sampled together by their top-k, all other rows)."""
    together: dict[int, list[int]] = {}
    alone: list[int] = []
    for row, sampler in enumerate(samplers):
        if sampler.is_greedy or not 0 < sampler.top_k <= vocabulary // 4:
            alone.append(row)
        else:
            together.setdefault(sampler.top_k, []).append(row)
    for k in [k for k, rows in together.items() if len(rows) < _FEWEST_ROWS]:
        alone += together.pop(k)
    return together, alone


@contextmanager
def _adjusted(logits: Logits, samplers: Sequence[Sampler]) -> Iterator[None]:
    """Penalties and biases are applied meanwhile: a copy of every row would take longer."""
    saved: list[tuple[int, Ids, Logits]] = []
    for row, sampler in enumerate(samplers):
        if sampler.adjusts_logits:
            ids = sampler.adjusted_ids()
            saved.append((row, ids, logits[row, ids]))
            sampler.adjust(logits[row])
    yield
    for row, ids, values in saved:
        logits[row, ids] = values


def _best(logits: Logits) -> list[int]:
    best = logits.argmax(axis=1)
    is_finite = np.isfinite(logits[np.arange(logits.shape[0]), best])
    tokens: list[int] = np.where(is_finite, best, BAD).tolist()
    return tokens


def _choose_alone(logits: Logits, sampler: Sampler, index: int) -> int:
    try:
        return sampler.choose_adjusted(logits, index)
    except BadLogits:
        return BAD


def _choose_of_top_k(
    logits: Logits, rows: list[int], k: int, samplers: list[Sampler], indices: list[int]
) -> list[int]:
    top = top_of_rows(logits, rows, k)
    temperatures = np.array([s.temperature for s in samplers])
    states = noise.draw_states([s.seed_state for s in samplers], indices)
    scores = scaled(top.logits, top.logits[:, :1], temperatures[:, None])
    scores += noise.gumbel(states[:, None], top.ids)
    scores[np.arange(k) >= _kept(top.logits, samplers)[:, None]] = -np.inf
    at = scores.argmax(axis=1)
    tokens: list[int] = np.where(top.is_finite, top.ids[np.arange(len(rows)), at], BAD).tolist()
    return tokens


def _kept(logits: Logits, samplers: list[Sampler]) -> Ids:
    """How many of each row's logits, which descend, survive top-p and min-p."""
    n, k = logits.shape
    kept = np.full(n, k)
    top_ps = np.array([s.top_p for s in samplers])
    if (top_ps < 1.0).any():
        weights = np.exp(logits - logits[:, :1])
        weights /= weights.sum(axis=1)[:, None]
        reached = (np.cumsum(weights, axis=1, dtype=np.float64) < top_ps[:, None]).sum(axis=1) + 1
        kept = np.where(top_ps < 1.0, np.minimum(reached, k), k)
    log_min_ps = np.array([s.log_min_p for s in samplers], np.float32)
    if (log_min_ps > -np.inf).any():
        kept = np.minimum(kept, (logits >= logits[:, :1] + log_min_ps[:, None]).sum(axis=1))
    return kept


@dataclass(frozen=True, slots=True)
class TopLogits:
    """The k largest logits of some rows, largest first, ties by id: two matrices of shape (rows, k).

    Attributes:
        is_finite: of shape (rows,); where it is not, nothing else of the row means anything.
    """

    ids: Ids
    logits: Logits
    is_finite: NDArray[np.bool_]


def top_of_rows(logits: Logits, rows: Sequence[int], k: int) -> TopLogits:
    """`sampling.top_ids` of several rows of a matrix of shape (rows, vocabulary), k being at most its width.

    As there, the k-th largest of the maxima of groups bounds the k-th largest logit of a row from below. Only
    groups whose maximum reaches it are looked at again.
    """
    n = logits.shape[1]
    group = _group_size(n, k)
    of = np.fromiter(rows, np.int64, len(rows))
    maxima = _group_maxima(logits, of, group)
    width = maxima.shape[1]
    tail = logits[of, group * width :]
    peaks = maxima.max(axis=1)
    if tail.size:
        np.maximum(peaks, tail.max(axis=1), out=peaks)
    is_finite = np.isfinite(peaks)
    bounds = np.partition(maxima, width - k, axis=1)[:, width - k]
    is_flat = np.count_nonzero(maxima >= bounds[:, None], axis=1) > _MOST_GROUPS_PER_K * k
    bounds[is_flat | ~is_finite] = np.inf  # none of them is a candidate
    at, ids = _candidates(logits, of, maxima, bounds, group)
    if tail.size:
        at, ids = _with_tail(at, ids, np.nonzero(tail >= bounds[:, None]), group * width)
    top = _in_order(logits.reshape(-1).take(of[at] * n + ids), at, ids, (len(rows), k))
    top[~is_finite] = 0
    for i in np.flatnonzero(is_flat & is_finite):
        top[i] = top_ids(logits[of[i]], k)
    values = logits[of[:, None], top]
    values[~is_finite] = 0.0
    return TopLogits(top, values, is_finite)


def _group_size(vocabulary: int, k: int) -> int:
    """Logits in a group: a power of two that keeps both the groups and what is looked at again few."""
    size = 1
    while 2 * size * size * k <= vocabulary:
        size *= 2
    return size


def _group_maxima(logits: Logits, rows: Ids, group: int) -> Logits:
    """Of shape (rows, groups). A group takes its logits from all over the row: numpy then compares whole rows
    of groups at once, twenty times as fast as neighbours."""
    n_rows, vocabulary = logits.shape
    width = vocabulary // group
    whole = group * width
    if rows.shape[0] == n_rows and whole == vocabulary:
        together: Logits = logits.reshape(n_rows, group, width).max(axis=1)
        return together
    maxima = np.empty((rows.shape[0], width), np.float32)
    for i, row in enumerate(rows):
        logits[row, :whole].reshape(group, width).max(axis=0, out=maxima[i])
    return maxima


def _candidates(logits: Logits, rows: Ids, maxima: Logits, bounds: Logits, group: int) -> tuple[Ids, Ids]:
    """(index into `rows`, id) of every logit that reaches its row's bound, by row."""
    width = maxima.shape[1]
    at, column = np.divmod(np.flatnonzero(maxima >= bounds[:, None]), width)
    ids = column[:, None] + np.arange(0, group * width, width)
    values = logits.reshape(-1).take((rows * logits.shape[1])[at][:, None] + ids)
    found = np.flatnonzero(values >= bounds[at][:, None])
    return at[found // group], ids.reshape(-1)[found]


def _with_tail(at: Ids, ids: Ids, tail: tuple[Ids, ...], first: int) -> tuple[Ids, Ids]:
    """Candidates and those of the ids from `first` on, by row."""
    at, ids = np.concatenate((at, tail[0])), np.concatenate((ids, tail[1] + first))
    order = np.argsort(at, kind="stable")
    return at[order], ids[order]


def _in_order(values: Logits, at: Ids, ids: Ids, shape: tuple[int, int]) -> Ids:
    """The ids of the k largest candidates of each row, largest first, ties by id.

    Args:
        values, at, ids: of the candidates, by row.
        shape: (rows, k).
    """
    n_rows, k = shape
    counts = np.bincount(at, minlength=n_rows)
    column = np.arange(at.shape[0]) - np.repeat(np.cumsum(counts) - counts, counts)
    keys = np.full((n_rows, max(int(counts.max()), k)), _PADDING)
    keys[at, column] = _descending(values) << np.uint64(32) | ids.astype(np.uint64)
    keys.sort(axis=1)
    return (keys[:, :k] & np.uint64(0xFFFFFFFF)).astype(np.int64)


def _descending(logits: Logits) -> NDArray[np.uint64]:
    """Numbers below 2^32 that are in the reverse order of the logits."""
    bits = (logits + np.float32(0.0)).view(np.uint32)  # the sum makes -0.0 a 0.0
    ascending = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    return (~ascending).astype(np.uint64)
