"""What is left of limits, as headers."""

from __future__ import annotations

import pytest

from inferflux.common.contract.callers import rate_limits
from inferflux.common.contract.callers.rate_limits import State, duration, headers_of, tightest


def state(name: str, remaining: int, *, limit: int = 100, reset_ms: int = 1000) -> State:
    return State(name=name, limit=limit, remaining=remaining, reset_ms=reset_ms)


def test_the_limit_with_least_left_is_told_for_each_name() -> None:
    states = [state("tokens", 7), state("requests", 5), state("requests", 3, limit=10), state("tokens", 9)]
    assert [(s.name, s.remaining) for s in tightest(states)] == [("requests", 3), ("tokens", 7)]


def test_of_two_that_are_used_up_the_one_that_lasts_longer_is_told() -> None:
    states = [
        state("requests", 0, reset_ms=5),
        state("requests", 0, reset_ms=9),
        state("requests", 0, reset_ms=2),
    ]
    assert [s.reset_ms for s in tightest(states)] == [9]


def test_headers_are_openais() -> None:
    headers = headers_of([state("requests", 59, limit=60, reset_ms=1000)])
    assert headers == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
    }
    assert set(headers) < set(rate_limits.HEADERS)
    assert headers_of([]) == {}


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (12, "12ms"),
        (999, "999ms"),
        (1000, "1s"),
        (1001, "1.1s"),
        (59_900, "59.9s"),
        (59_901, "1m0s"),
        (360_000, "6m0s"),
        (360_001, "6m1s"),
        (86_399_000, "23h59m59s"),
    ],
)
def test_a_duration_is_rounded_up(ms: int, text: str) -> None:
    assert duration(ms) == text
