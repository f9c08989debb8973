"""Sampling of a token id for each row of a matrix of logits.

A call of numpy costs about a microsecond however few numbers it is for, so rows with the same top-k are
sampled together, those with filters apart from those without. Every other row goes through
`Sampler.choose_adjusted`. Either way gives the same token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from . import noise
from .filter_rows import survivors
from .filters import sigma_bound
from .sampling import BadLogits, Ids, Logits, Sampler, scaled, top_ids

BAD = -1
"""In place of a token id: the row has no finite choice."""

# Fewer rows are as fast one by one.
_FEWEST_ROWS = 3
# Smaller groups take longer than they save.
_SMALLEST_GROUP = 16
_LOWEST = np.finfo(np.float32).min

# Rows by their top-k, and whether they have filters.
_Groups = dict[tuple[int, bool], list[int]]


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
        together, alone = _by_group(samplers, logits.shape[1])
        for (k, has_filters), rows in together.items():
            choose = _choose_filtered if has_filters else _choose_of_top_k
            found = choose(logits, rows, k, [samplers[r] for r in rows], [indices[r] for r in rows])
            if found is None:
                alone += rows
                continue
            for row, token in zip(rows, found, strict=True):
                tokens[row] = token
        for row in alone:
            tokens[row] = _choose_alone(logits[row], samplers[row], indices[row])
        return tokens


def _by_group(samplers: Sequence[Sampler], vocabulary: int) -> tuple[_Groups, list[int]]:
    """(rows that are sampled together by their group, all other rows)."""
    together: _Groups = {}
    alone: list[int] = []
    for row, sampler in enumerate(samplers):
        if sampler.temperature <= 0.0 or not 0 < sampler.top_k <= vocabulary // 4:
            alone.append(row)
        else:
            together.setdefault(sampler.group, []).append(row)
    for group in [group for group, rows in together.items() if len(rows) < _FEWEST_ROWS]:
        alone += together.pop(group)
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
    if not is_finite.all():
        best[~is_finite] = BAD
    tokens: list[int] = best.tolist()
    return tokens


def _choose_alone(logits: Logits, sampler: Sampler, index: int) -> int:
    try:
        return sampler.choose_adjusted(logits, index)
    except BadLogits:
        return BAD


def _choose_of_top_k(
    logits: Logits, rows: list[int], k: int, samplers: list[Sampler], indices: list[int]
) -> list[int] | None:
    """The tokens of these rows; None where one is not finite, or a tie decides: each is looked at alone."""
    candidates = _candidates(logits, rows, k + 1)
    if not np.isfinite(candidates.largest[:, 0]).all():
        return None
    last = _last_kept(candidates.largest, samplers)
    if last is None:
        return None
    at, ids, kept_logits = candidates.that_reach(last)
    temperatures = np.array([s.temperature for s in samplers])
    states = noise.draw_states([s.seed_state for s in samplers], indices)
    scores = scaled(kept_logits, candidates.largest[at, 0], temperatures[at])
    return _drawn(at, ids, scores, states)


def _choose_filtered(
    logits: Logits, rows: list[int], k: int, samplers: list[Sampler], indices: list[int]
) -> list[int] | None:
    """Choose as `_choose_of_top_k` does, in rows with filters."""
    candidates = _candidates(logits, rows, k + 1)
    if not np.isfinite(candidates.largest[:, 0]).all():
        return None
    states = noise.draw_states([s.seed_state for s in samplers], indices)
    bounds = np.full(len(rows), -np.inf, np.float32)
    for i, (row, sampler) in enumerate(zip(rows, samplers, strict=True)):
        if sampler.filters and sampler.filters.n_sigma:
            bounds[i] = sigma_bound(logits[row], sampler.filters.n_sigma)
    left = survivors(candidates.largest, bounds, samplers, states)
    if left is None:
        return None
    at, ids, kept_logits = candidates.that_reach(left.lowest, left.highest)
    scores = scaled(kept_logits, left.highest[at], left.temperatures[at])
    return _drawn(at, ids, scores, states)


def _drawn(at: Ids, ids: Ids, scores: NDArray[np.float64], states: noise.States) -> list[int] | None:
    """The id with the highest score in each row, once noise is added; None where two are equal.

    Args:
        at: the row of each id, ascending; every row has some.
    """
    scores += noise.gumbel(states[at], ids)
    highest = np.maximum.reduceat(scores, np.searchsorted(at, np.arange(states.shape[0])))
    tokens: list[int] = ids[np.flatnonzero(scores == highest[at])].tolist()
    return tokens if len(tokens) == states.shape[0] else None


def _last_kept(largest: Logits, samplers: list[Sampler]) -> Logits | None:
    """Return each row's lowest logit that survives top-k, top-p and min-p.

    Args:
        largest: of shape (rows, k + 1), descending, the first of each row finite.

    Returns:
        None where that tells no logits apart: one that survives is equal to one that does not.
    """
    k = largest.shape[1] - 1
    best = largest[:, :1]
    kept = np.full(len(samplers), k)
    top_ps = np.array([s.top_p for s in samplers])
    if top_ps.min() < 1.0:
        weights = np.exp(largest[:, :k] - best)
        weights /= weights.sum(axis=1)[:, None]
        sums = weights.astype(np.float64)
        np.cumsum(sums, axis=1, out=sums)
        reached = np.count_nonzero(sums < top_ps[:, None], axis=1)
        kept = np.where(top_ps < 1.0, np.minimum(reached + 1, k), k)
    log_min_ps = np.array([s.log_min_p for s in samplers], np.float32)
    if log_min_ps.max() > -np.inf:
        kept = np.minimum(kept, np.count_nonzero(largest >= best + log_min_ps[:, None], axis=1))
    numbers = np.arange(len(samplers))
    last = largest[numbers, kept - 1]
    # Minus infinity is never drawn, so those are left out, and need not be told from each other.
    if not ((last > largest[numbers, kept]) | (last == -np.inf)).all():
        return None
    bounds: Logits = np.maximum(last, _LOWEST)
    return bounds


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Logits of some rows, the k largest of each among them.

    Attributes:
        logits: of shape (rows, candidates).
        ids: of the same shape; None where a logit's column is its id.
        largest: of shape (rows, k), descending.
    """

    logits: Logits
    ids: Ids | None
    largest: Logits

    def that_reach(self, bounds: Logits, highest: Logits | None = None) -> tuple[Ids, Ids, Logits]:
        """(row, id, logit) of each candidate that is not less than its row's bound, and not more than its
        highest, by row."""
        width = self.logits.shape[1]
        is_in = self.logits >= bounds[:, None]
        if highest is not None:
            is_in &= self.logits <= highest[:, None]
        places = np.flatnonzero(is_in)
        at = places // width
        ids = places - at * width if self.ids is None else self.ids.take(places)
        return at, ids, self.logits.take(places)


def _candidates(logits: Logits, rows: Sequence[int], k: int) -> _Candidates:
    """Find the candidates of these rows of a matrix of shape (rows, vocabulary), k being at most its width.

    First only the maxima of groups are compared: the k largest logits of a row are in the k groups with the
    largest maxima.
    """
    of = np.fromiter(rows, np.int64, len(rows))
    vocabulary = logits.shape[1]
    group = _group_size(vocabulary, k)
    if group > 1:
        ids = _ids_of_groups(logits, of, group, k)
        found = logits.reshape(-1).take(ids + (of * vocabulary)[:, None])
    else:
        ids = None
        found = logits if of.shape[0] == logits.shape[0] else logits[of]
    if found.min() == -np.inf:  # np.partition takes ten times as long where many are equal
        largest = np.sort(found, axis=1)[:, -k:]
    else:
        largest = np.partition(found, found.shape[1] - k, axis=1)[:, -k:]
        largest.sort(axis=1)
    return _Candidates(found, ids, largest[:, ::-1])


def _ids_of_groups(logits: Logits, rows: Ids, group: int, k: int) -> Ids:
    """Return the ids, of shape (rows, ids), in the k groups with the largest maxima, and those in no
    group."""
    maxima = _group_maxima(logits, rows, group)
    n_rows, width = maxima.shape
    if maxima.min() == -np.inf:  # Of masked rows: as none of them is chosen, they may just as well differ.
        maxima = np.maximum(maxima, _lowest_numbers(width))
    bounds = np.partition(maxima, width - k, axis=1)[:, width - k]
    columns = np.flatnonzero(maxima >= bounds[:, None])
    if columns.shape[0] == n_rows * k:
        columns = columns.reshape(n_rows, k) - np.arange(0, maxima.size, width)[:, None]
    else:  # Some maxima are equal. This takes six times as long.
        columns = np.argpartition(maxima, width - k, axis=1)[:, -k:]
    whole = group * width
    ids = (columns[:, :, None] + np.arange(0, whole, width)).reshape(n_rows, -1)
    if whole == logits.shape[1]:
        return ids
    rest = np.arange(whole, logits.shape[1])
    return np.concatenate((ids, np.broadcast_to(rest, (n_rows, rest.shape[0]))), axis=1)


@cache
def _lowest_numbers(n: int) -> Logits:
    """The n lowest finite ones, each of them once."""
    return (_LOWEST.view(np.uint32) - np.arange(n, dtype=np.uint32)).view(np.float32)


def _group_size(vocabulary: int, k: int) -> int:
    """Logits in a group: a power of two that keeps both the groups and what is looked at again few."""
    size = 1
    while 2 * size * size * k <= vocabulary:
        size *= 2
    return size if size >= _SMALLEST_GROUP else 1


def _group_maxima(logits: Logits, rows: Ids, group: int) -> Logits:
    """Return the largest logit of each group, of shape (rows, groups). A group takes its logits from all over
    the row: numpy then compares whole rows of groups at once, twenty times as fast as neighbours."""
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


@dataclass(frozen=True, slots=True)
class TopLogits:
    """The k largest logits of some rows, largest first, ties by id: two matrices of shape (rows, k)."""

    ids: Ids
    logits: Logits


def top_of_rows(logits: Logits, rows: Sequence[int], k: int) -> TopLogits:
    """`sampling.top_ids` of several rows of a matrix of shape (rows, vocabulary); k is at most its width."""
    candidates = _candidates(logits, rows, min(k + 1, logits.shape[1]))
    largest = candidates.largest
    if (largest[:, 1:] == largest[:, :-1]).any():
        tied = np.stack([top_ids(logits[row], k) for row in rows])
        return TopLogits(tied, np.stack([logits[row, ids] for row, ids in zip(rows, tied, strict=True)]))
    _, ids, values = candidates.that_reach(largest[:, k - 1])
    order = values.reshape(-1, k).argsort(axis=1)[:, ::-1]
    starts = np.arange(0, values.shape[0], k)[:, None]
    return TopLogits(ids.take(order + starts), largest[:, :k])
