"""The figures of a long prompt that arrives among running streams."""

from __future__ import annotations

import pytest

from benchmarks.load.trace import Trace
from benchmarks.long_prompt import figures


def _long(sent_s: float, first_s: float) -> Trace:
    return Trace(sent_s, [first_s, first_s + 0.1], tokens=2, ended_s=first_s + 0.1)


def test_the_longest_gap_is_held_against_the_median_before_the_prompt_came() -> None:
    # Every second before; the prompt comes at 10.5, takes until 14, and slows the stream down meanwhile.
    stream = [*map(float, range(11)), 11.5, 13.5, 15.0, 16.0]
    found = figures([stream], settled_s=0.0, long=_long(10.5, 14.0), ttft_alone_s=1.5)
    assert found.undisturbed_gap_ms == pytest.approx(1000)
    assert found.longest_gap_ms == pytest.approx(2000)
    assert found.longest_over_median == pytest.approx(2.0)
    assert found.tokens_meanwhile == 2
    assert found.ttft_ratio == pytest.approx(3.5 / (1.5 + 2 * 1.0))


def test_a_stream_that_stands_still_all_the_while_shows_its_whole_stall() -> None:
    stalled = [*map(float, range(11)), 40.0, 41.0]
    lively = [x / 2 for x in range(84)]
    found = figures([stalled, lively], settled_s=0.0, long=_long(10.2, 39.0), ttft_alone_s=29.0)
    assert found.longest_gap_ms == pytest.approx(30_000)


def test_gaps_before_all_streams_had_settled_do_not_count() -> None:
    stream = [0.0, 50.0, 51.0, 52.0, 53.0, 54.0]
    found = figures([stream], settled_s=50.0, long=_long(52.5, 53.5), ttft_alone_s=1.0)
    assert found.undisturbed_gap_ms == pytest.approx(1000)
    assert found.longest_gap_ms == pytest.approx(1000)
