"""Tasks and their owners."""

from __future__ import annotations

import asyncio

import pytest

from inferflux.common.process.metrics import UNEXPECTED_ERRORS
from inferflux.common.process.tasks import Background, cancel_all, is_set_within, next_in_s


async def fail() -> None:
    raise ValueError("out of range")


def failures() -> float:
    (metric,) = UNEXPECTED_ERRORS.labels(where="background").collect()
    return next(sample.value for sample in metric.samples if sample.name.endswith("_total"))


async def test_an_exception_is_counted_and_handed_on() -> None:
    told: list[BaseException] = []
    before = failures()
    background = Background(told.append)
    background.start(fail())
    await background.finish(1.0)
    await asyncio.sleep(0)
    assert [str(error) for error in told] == ["out of range"]
    assert failures() == before + 1


async def test_closing_cancels_what_runs_and_that_is_no_failure() -> None:
    told: list[BaseException] = []
    background = Background(told.append)
    task = background.start(asyncio.sleep(3600))
    await background.close()
    assert task.cancelled()
    assert told == []


async def test_finishing_without_a_limit_waits_for_all() -> None:
    background = Background()
    task = background.start(asyncio.sleep(0.05))
    await background.finish(None)
    assert task.done()
    assert not task.cancelled()


async def test_an_event_that_is_not_set_in_time_is_not_waited_for_longer() -> None:
    event = asyncio.Event()
    assert not await is_set_within(event, 0)
    asyncio.get_running_loop().call_soon(event.set)
    assert await is_set_within(event, 60)


@pytest.mark.parametrize("turns", range(5))
async def test_a_loop_that_waits_for_news_ends_when_it_is_cancelled_as_news_come(turns: int) -> None:
    news = asyncio.Event()

    async def follow() -> None:
        while True:
            await is_set_within(news, 60.0)
            news.clear()
            await asyncio.sleep(0)

    task = asyncio.create_task(follow())
    for _ in range(3):
        await asyncio.sleep(0)
    news.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await cancel_all([task])
    assert task.cancelled()


@pytest.mark.parametrize(("now_s", "left_s"), [(7.0, 1.0), (7.25, 0.75), (7.998, 0.002), (7.9995, 1.0005)])
def test_what_reports_once_a_second_does_so_at_whole_seconds_and_once(now_s: float, left_s: float) -> None:
    assert next_in_s(now_s, 1.0) == pytest.approx(left_s)
