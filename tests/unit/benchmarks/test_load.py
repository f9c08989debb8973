"""How requests are sent."""

from __future__ import annotations

import asyncio
import itertools
import math
import statistics

import pytest

from benchmarks.load.loops import closed_loop, open_loop, poisson_moments
from benchmarks.load.trace import Trace


async def test_a_closed_loop_keeps_exactly_this_many_on_the_way() -> None:
    on_the_way = 0
    most = 0
    sent: list[int] = []

    async def send(index: int, trace: Trace) -> None:
        nonlocal on_the_way, most
        sent.append(index)
        on_the_way += 1
        most = max(most, on_the_way)
        await asyncio.sleep(0)
        on_the_way -= 1

    done: list[None] = []
    traces = await closed_loop(send, requests=range(10, 20), concurrency=3, on_done=lambda: done.append(None))
    assert sorted(sent) == list(range(10, 20))
    assert len(traces) == 10
    assert most == 3
    assert len(done) == 10


async def test_an_open_loop_waits_for_no_answer_and_counts_from_when_a_request_was_due() -> None:
    release = asyncio.Event()
    started = 0

    async def send(index: int, trace: Trace) -> None:
        nonlocal started
        started += 1
        if started == 5:
            release.set()
        await release.wait()

    traces = await open_loop(send, requests=range(5), rate=10_000.0, seed=3, on_done=lambda: None)
    moments = [trace.sent_s - traces[0].sent_s for trace in traces]
    expected = poisson_moments(5, 10_000.0, 3)
    assert moments == pytest.approx([moment - expected[0] for moment in expected])


def test_poisson_moments_have_the_rate_asked_for_and_come_again_with_the_seed() -> None:
    moments = poisson_moments(20_000, 50.0, 1)
    assert moments[-1] == pytest.approx(400.0, rel=0.03)
    assert moments == sorted(moments)
    assert moments == poisson_moments(20_000, 50.0, 1)
    assert moments != poisson_moments(20_000, 50.0, 2)


def test_gaps_between_poisson_arrivals_are_spread_as_much_as_they_are_long() -> None:
    moments = poisson_moments(20_000, 2.0, 1)
    between = [later - earlier for earlier, later in itertools.pairwise([0.0, *moments])]
    assert statistics.mean(between) == pytest.approx(0.5, rel=0.03)
    assert statistics.stdev(between) == pytest.approx(0.5, rel=0.03)
    # The share of gaps above twice the mean.
    assert sum(gap > 1.0 for gap in between) / len(between) == pytest.approx(math.exp(-2), rel=0.05)
