"""Consumers of a part of the work queue each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from inferflux.common import subjects
from inferflux.common.bus import Bus, Job, JobConsumer, StreamLimits
from inferflux.common.errors import InvalidArgument, Unavailable
from inferflux.common.servers import ServerProcess


@pytest.fixture
async def own_bus(private_nats: ServerProcess) -> AsyncIterator[Bus]:
    bus = await Bus.connect(private_nats.url, name="test")
    await bus.ensure_streams(StreamLimits())
    yield bus
    await bus.close()


async def take(consumer: JobConsumer, count: int) -> list[Job]:
    async with asyncio.timeout(5):
        return [await anext(consumer) for _ in range(count)]


async def queue(bus: Bus, *models: str) -> None:
    for model in models:
        assert await bus.enqueue(subjects.jobs(model), model.encode(), msg_id=model)


async def test_each_partition_gets_the_jobs_of_its_models(own_bus: Bus) -> None:
    first = await own_bus.consume_jobs(max_outstanding=10, partition="first", models=["a", "b.c"])
    second = await own_bus.consume_jobs(max_outstanding=10, partition="second", models=["d"])
    await queue(own_bus, "a", "d", "b.c")
    assert [job.data for job in await take(first, 2)] == [b"a", b"b.c"]
    assert [job.data for job in await take(second, 1)] == [b"d"]


async def test_a_partition_is_taken_over_without_touching_the_other(own_bus: Bus) -> None:
    old = await own_bus.consume_jobs(max_outstanding=10, partition="first", models=["a"])
    other = await own_bus.consume_jobs(max_outstanding=10, partition="second", models=["b"])
    await queue(own_bus, "a")
    await take(old, 1)
    new = await own_bus.consume_jobs(max_outstanding=10, partition="first", models=["a"])
    assert [job.data for job in await take(new, 1)] == [b"a"]
    with pytest.raises(Unavailable) as caught:
        await take(old, 1)
    assert caught.value.reason == "CONSUMER_TAKEN_OVER"
    await queue(own_bus, "b")
    assert [job.data for job in await take(other, 1)] == [b"b"]


@pytest.mark.parametrize("models", [["b", "a"], []])
async def test_partitions_that_overlap_are_refused_naming_the_variable(
    own_bus: Bus, models: list[str]
) -> None:
    await own_bus.consume_jobs(max_outstanding=10, partition="first", models=["a"])
    with pytest.raises(InvalidArgument) as caught:
        await own_bus.consume_jobs(max_outstanding=10, partition="second", models=models)
    assert caught.value.field == "INFERFLUX_SCHEDULER_MODELS"
    assert "INFERFLUX_SCHEDULER_PARTITION" in caught.value.message


async def test_two_without_models_are_refused_as_well(own_bus: Bus) -> None:
    await own_bus.consume_jobs(max_outstanding=10)
    with pytest.raises(InvalidArgument):
        await own_bus.consume_jobs(max_outstanding=10, partition="second")


async def test_of_many_that_take_over_at_once_at_most_one_goes_on(own_bus: Bus) -> None:
    attempts = await asyncio.gather(
        *(own_bus.consume_jobs(max_outstanding=10) for _ in range(6)), return_exceptions=True
    )
    made = [one for one in attempts if isinstance(one, JobConsumer)]
    assert all(isinstance(one, JobConsumer | Unavailable) for one in attempts)
    readers = [asyncio.create_task(anext(one)) for one in made]
    await queue(own_bus, "a")
    async with asyncio.timeout(10):  # one whose pull met no consumer finds out when its heartbeats stay away
        await asyncio.wait(readers)
    winners = [reader for reader in readers if reader.exception() is None]
    assert len(winners) == 1
