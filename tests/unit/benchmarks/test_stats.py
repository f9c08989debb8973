"""Percentiles, gaps and what a run adds up to."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.stats import gaps, median, percentile, summary
from benchmarks.load.trace import Trace, totals

_VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@given(_VALUES, st.floats(0, 1))
def test_a_percentile_is_the_one_numpy_gives(values: list[float], quantile: float) -> None:
    expected = float(np.quantile(values, quantile))
    assert percentile(sorted(values), quantile) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)
    assert summary([]) == {"p50": None, "p90": None, "p99": None, "max": None}
    assert math.isnan(median([]))


def test_a_quantile_beyond_one_is_refused() -> None:
    with pytest.raises(ValueError, match="quantile"):
        percentile([1.0], 1.01)


def test_a_summary_is_in_milliseconds() -> None:
    assert summary([0.001, 0.003, 0.002]) == {"p50": 2.0, "p90": 2.8, "p99": 2.98, "max": 3.0}


def test_gaps_are_between_neighbours() -> None:
    assert gaps([1.0, 1.5, 3.5]) == [0.5, 2.0]
    assert gaps([1.0]) == []


def _trace(sent_s: float, *arrivals_s: float, error: str = "") -> Trace:
    ended_s = arrivals_s[-1] if arrivals_s else sent_s
    return Trace(sent_s, list(arrivals_s), tokens=len(arrivals_s), ended_s=ended_s, error=error)


def test_throughput_counts_from_the_first_request_sent_to_the_last_one_ended() -> None:
    result = totals([_trace(10.0, 11.0, 12.0), _trace(11.0, 13.0, 14.0)])
    assert result["duration_s"] == 4.0
    assert result["tokens"] == 4
    assert result["tokens_per_s"] == 1.0
    assert result["ttft_ms"]["p50"] == 1500.0
    assert result["itl_ms"]["max"] == 1000.0
    assert result["e2e_ms"]["max"] == 3000.0
    assert result["failed"] == 0


def test_a_failed_request_counts_as_failed_and_in_no_latency() -> None:
    result = totals([_trace(0.0, 1.0), _trace(0.0, 9.0, error="boom"), _trace(0.0), _trace(0.0)])
    assert result["requests"] == 4
    assert result["failed"] == 3
    assert result["errors"] == {"boom": 1, "no token came": 2}
    assert result["ttft_ms"]["max"] == 1000.0


def test_sampled_to_received_is_told_only_where_the_server_tells() -> None:
    assert "sampled_to_received_ms" not in totals([_trace(0.0, 1.0)])
    told = Trace(0.0, [1.0], [0.002], tokens=1, ended_s=1.0)
    assert totals([told])["sampled_to_received_ms"]["p50"] == 2.0
