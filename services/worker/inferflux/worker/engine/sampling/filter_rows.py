"""The filters of `filters` for many rows at once, with the filters that lie between them.

Every filter keeps neighbours: a row's logits in descending order, from one place to another. Typical-p does
too, since information grows as a logit falls. So a row is two places, and a filter moves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import noise
from .filters import Filters, Logits
from .sampling import Sampler

Places = NDArray[np.int64]
Floats = NDArray[np.float64]

_COLDEST = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, slots=True)
class Survivors:
    """Tokens of each row that may be drawn: those with logits from `lowest` to `highest`, both of shape
    (rows,).

    Attributes:
        temperatures: of shape (rows,), above 0.
    """

    lowest: Logits
    highest: Logits
    temperatures: Floats


def survivors(
    largest: Logits, bounds: Logits, samplers: Sequence[Sampler], states: noise.States
) -> Survivors | None:
    """Return what top-n-sigma, top-k, typical-p, top-p, min-p and XTC leave of each row, and its temperature.

    Args:
        largest: of shape (rows, top_k + 1), descending, the first of each row finite.
        bounds: of top-n-sigma, of shape (rows,); minus infinity where it is off.
        samplers: one for each row, with filters.
        states: of the rows' draws.

    Returns:
        None where logits do not tell what survives: one that does is equal to one that does not.
    """
    rows = _Rows(largest)
    filters = [f for s in samplers if (f := s.filters) is not None]
    rows.cut_below(bounds)
    rows.keep_typical(np.array([f.typical_p for f in filters]))
    rows.keep_nucleus(np.array([s.top_p for s in samplers]))
    rows.cut_below(rows.highest + np.array([s.log_min_p for s in samplers], np.float32))
    rows.exclude_top_choices(_thresholds(filters, states))
    if rows.has_ties:
        return None
    return Survivors(rows.lowest, rows.highest, np.maximum(rows.temperatures(filters), _COLDEST))


def _thresholds(filters: Sequence[Filters], states: noise.States) -> Floats:
    """XTC's threshold where it is applied; infinite elsewhere."""
    probabilities = np.array([f.xtc_probability for f in filters])
    is_applied = (probabilities > 0.0) & (noise.uniform(states) <= probabilities)
    return np.where(is_applied, [f.xtc_threshold for f in filters], np.inf)


class _Rows:
    """The places of the survivors: from `_first` to before `_end`."""

    def __init__(self, largest: Logits) -> None:
        self._largest = largest
        self._numbers = np.arange(largest.shape[0])
        self._columns = np.arange(largest.shape[1] - 1)
        self._below = largest[:, :-1].astype(np.float64) - largest[:, :1]
        self._weights = np.exp(self._below)
        self._first = np.zeros(largest.shape[0], np.int64)
        self._end = np.count_nonzero(largest[:, :-1] > -np.inf, axis=1)

    @property
    def highest(self) -> Logits:
        found: Logits = self._largest[self._numbers, self._first]
        return found

    @property
    def lowest(self) -> Logits:
        found: Logits = self._largest[self._numbers, self._end - 1]
        return found

    @property
    def has_ties(self) -> bool:
        """True if a survivor is equal to what is next to it and does not survive."""
        after = self._largest[self._numbers, self._end]
        before = self._largest[self._numbers, np.maximum(self._first - 1, 0)]
        return bool((after == self.lowest).any() or ((before == self.highest) & (self._first > 0)).any())

    def cut_below(self, bounds: Logits) -> None:
        self._end = np.minimum(self._end, np.count_nonzero(self._largest >= bounds[:, None], axis=1))

    def keep_typical(self, p: Floats) -> None:
        if p.min() >= 1.0:
            return
        probabilities, log_probabilities = self._softmax()
        entropies = self._entropies(probabilities, log_probabilities)
        distances = np.where(self._is_left, np.abs(log_probabilities + entropies[:, None]), np.inf)
        order = distances.argsort(axis=1, kind="stable")
        sums = np.take_along_axis(probabilities, order, axis=1).cumsum(axis=1)
        n = np.minimum(np.count_nonzero(sums <= p[:, None], axis=1) + 1, self._end - self._first)
        kept = np.where(self._columns < n[:, None], order, self._columns.shape[0])
        is_on = p < 1.0
        self._first = np.where(is_on, kept.min(axis=1), self._first)
        self._end = np.where(is_on, self._first + n, self._end)

    def keep_nucleus(self, p: Floats) -> None:
        if p.min() >= 1.0:
            return
        probabilities, _ = self._softmax()
        reached = np.count_nonzero((probabilities.cumsum(axis=1) < p[:, None]) & self._is_left, axis=1)
        self._end = np.where(p < 1.0, np.minimum(self._first + reached + 1, self._end), self._end)

    def exclude_top_choices(self, thresholds: Floats) -> None:
        if thresholds.min() > 1.0:
            return
        probabilities, _ = self._softmax()
        tops = np.count_nonzero((probabilities >= thresholds[:, None]) & self._is_left, axis=1)
        self._first += np.maximum(tops - 1, 0)

    def temperatures(self, filters: Sequence[Filters]) -> Floats:
        """The temperature of each row, by its entropy where it is dynamic."""
        constant = np.array([f.temperature for f in filters])
        ranges = np.array([f.temperature_range for f in filters])
        n = self._end - self._first
        is_dynamic = (ranges > 0.0) & (n > 1)
        if not is_dynamic.any():
            return constant
        entropies = self._entropies(*self._softmax())
        parts = np.clip(entropies / np.log(np.maximum(n, 2)), 0.0, 1.0)
        parts **= [f.temperature_exponent for f in filters]
        coldest = np.array([f.coldest for f in filters])
        warmest = np.array([f.warmest for f in filters])
        return np.where(is_dynamic, coldest + (warmest - coldest) * parts, constant)

    @property
    def _is_left(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (self._columns >= self._first[:, None]) & (
            self._columns < self._end[:, None]
        )
        return found

    def _softmax(self) -> tuple[Floats, Floats]:
        """(probabilities of the survivors, 0 for others, their logarithms, whatever for others)."""
        weights = np.where(self._is_left, self._weights, 0.0)
        totals = weights.sum(axis=1)[:, None]
        return weights / totals, self._below - np.log(totals)

    def _entropies(self, probabilities: Floats, log_probabilities: Floats) -> Floats:
        is_drawn = probabilities > 0.0
        found: Floats = -(probabilities * np.where(is_drawn, log_probabilities, 0.0)).sum(axis=1)
        return found
