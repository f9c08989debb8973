"""Percentiles of what was measured."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence

Summary = dict[str, float | None]
"""p50, p90, p99 and max in milliseconds; None where there was nothing to measure."""

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def percentile(ordered: Sequence[float], quantile: float) -> float:
    """The value below which `quantile` (0 to 1) of the ascending values lie, interpolated linearly.

    Raises:
        ValueError: there are no values, or the quantile is out of range.
    """
    if not ordered:
        raise ValueError("no values have no percentile")
    if not 0.0 <= quantile <= 1.0:
        raise ValueError(f"quantile {quantile} is not within 0 and 1")
    at = quantile * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def summary(seconds: Iterable[float]) -> Summary:
    """The percentiles of `seconds`, in milliseconds."""
    ordered = sorted(seconds)
    if not ordered:
        return dict.fromkeys(_QUANTILES)
    return {name: round(percentile(ordered, q) * 1000, 3) for name, q in _QUANTILES.items()}


def median(values: Iterable[float]) -> float:
    """The median; nan of no values."""
    known = list(values)
    return statistics.median(known) if known else float("nan")


def gaps(moments: Sequence[float]) -> list[float]:
    """The times between consecutive moments."""
    return [later - earlier for earlier, later in itertools.pairwise(moments)]
