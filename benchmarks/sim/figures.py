"""Figures of simulated runs (pure)."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.load.stats import percentile

from .traffic import Arrival

Waits = dict[str, float]
"""n, p50, p90, p99 and max; seconds but for n."""

# A generated token counts as this many prompt tokens in what a tenant was served, as in the policy `fair`.
OUTPUT_COST = 2.0

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


class Served(NamedTuple):
    """Service of each group (tenant, say) in a span of simulated time that ended `at_s`, in prompt tokens
    (see OUTPUT_COST), and the groups that had requests waiting all along."""

    at_s: float
    span_s: float
    tokens: Mapping[str, float]
    backlogged: frozenset[str]


def jain_index(shares: Iterable[float]) -> float:
    """How equal shares are: 1 when all are, 1/n when one of n has everything (Jain, Chiu and Hawe, 1984).

    Raises:
        ValueError: there are none, or one is negative.
    """
    values = list(shares)
    if not values or min(values) < 0:
        raise ValueError("Jain's index is of one or more shares, none negative")
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def fit_exponent(points: Sequence[tuple[float, float]]) -> float:
    """k of the y = c * x**k that fits best, by least squares of the logarithms.

    Raises:
        ValueError: fewer than two different x, or a coordinate that is not positive.
    """
    if len({x for x, _ in points}) < 2 or any(x <= 0 or y <= 0 for x, y in points):
        raise ValueError("an exponent needs two points of different x, and only positive coordinates")
    line = statistics.linear_regression([math.log(x) for x, _ in points], [math.log(y) for _, y in points])
    return line.slope


def waits(seconds: Iterable[float]) -> Waits:
    """The percentiles of some waiting times, in seconds; only n when there are none."""
    ordered = sorted(seconds)
    if not ordered:
        return {"n": 0}
    return {"n": len(ordered)} | {
        name: round(percentile(ordered, quantile), 4) for name, quantile in _QUANTILES.items()
    }


def waits_by_class(arrivals: Iterable[Arrival]) -> dict[str, Waits]:
    """From arrival to the first token, by priority, the most urgent class first."""
    by_class: dict[int, list[float]] = defaultdict(list)
    for arrival in arrivals:
        if (seconds := arrival.first_token_wait_s) is not None:
            by_class[arrival.priority].append(seconds)
    return {str(priority): waits(by_class[priority]) for priority in sorted(by_class, reverse=True)}


def service_rates(served: Iterable[Served], weights: Mapping[str, float]) -> dict[str, float]:
    """Service per second and weight that each tenant was given while it had requests waiting.

    Args:
        served: by tenant. Only spans count in which every tenant of `weights` was backlogged: else their
            shares do not compare.
    """
    totals = dict.fromkeys(weights, 0.0)
    seconds = 0.0
    for span in served:
        if span.backlogged >= weights.keys():
            seconds += span.span_s
            for tenant in weights:
                totals[tenant] += span.tokens.get(tenant, 0.0)
    if not seconds:
        return {}
    return {tenant: total / seconds / weights[tenant] for tenant, total in totals.items()}
