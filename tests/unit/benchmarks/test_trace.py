"""What many requests add up to."""

from __future__ import annotations

import pytest

from benchmarks.load.trace import Objective, Trace, totals

_OBJECTIVE = Objective(ttft_s=1.0, mean_gap_s=0.06)


def _trace(ttft_s: float = 0.5, gap_s: float = 0.05, tokens: int = 11, sent_s: float = 100.0) -> Trace:
    arrivals = [sent_s + ttft_s + gap_s * index for index in range(tokens)]
    return Trace(sent_s, arrivals, tokens=tokens, ended_s=arrivals[-1])


@pytest.mark.parametrize(
    ("trace", "is_met"),
    [
        (_trace(), True),
        (_trace(ttft_s=1.1), False),
        (_trace(gap_s=0.07), False),
        (_trace(tokens=1, ttft_s=0.9), True),
        (Trace(100.0, [100.1], tokens=1, ended_s=100.2, error="lost"), False),
        (Trace(100.0, ended_s=100.2), False),
    ],
    ids=["kept", "late first token", "slow", "one token", "failed", "no token"],
)
def test_an_objective_is_met_by_whole_answers_that_keep_both_limits(trace: Trace, is_met: bool) -> None:
    assert trace.meets(_OBJECTIVE) is is_met


def test_the_mean_gap_is_per_token_and_not_per_message() -> None:
    # Nine tokens in three messages, 0.4 s from the first to the last.
    trace = Trace(0.0, [0.1, 0.3, 0.5], tokens=9, ended_s=0.5)
    assert trace.mean_gap_s == pytest.approx(0.05)
    assert trace.meets(_OBJECTIVE)


def test_one_long_gap_among_short_ones_does_not_break_the_objective() -> None:
    trace = _trace(gap_s=0.04)
    trace.arrivals_s[5:] = [moment + 0.15 for moment in trace.arrivals_s[5:]]
    assert trace.meets(_OBJECTIVE)


def test_the_goodput_is_the_requests_that_met_the_objective_per_second_of_the_run() -> None:
    late = _trace(ttft_s=3.5, sent_s=101.0)  # ends at 105.0
    run = totals([_trace(), _trace(sent_s=101.0), late], _OBJECTIVE)
    assert run["duration_s"] == 5.0
    assert run["met_objective"] == 2
    assert run["goodput_per_s"] == 0.4


def test_no_goodput_is_told_without_an_objective() -> None:
    assert "goodput_per_s" not in totals([_trace()])
