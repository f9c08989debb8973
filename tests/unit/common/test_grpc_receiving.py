"""Places for messages that arrive: bounded, and never held by the slow against others."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any

import pytest

from inferflux.common.calls.fair_places import FairPlaces, Victim
from inferflux.common.calls.grpc_receiving import Receiving
from inferflux.common.contract.errors import DeadlineExceeded, InferFluxError, ResourceExhausted


async def hold(receiving: Receiving, arrived: asyncio.Event, taken: asyncio.Event) -> None:
    async with receiving.place():
        taken.set()
        await arrived.wait()


async def start(receiving: Receiving, arrived: asyncio.Event) -> asyncio.Task[None]:
    """A message that holds a place until `arrived`."""
    taken = asyncio.Event()
    task = asyncio.create_task(hold(receiving, arrived, taken))
    async with asyncio.timeout(5):
        await taken.wait()
    return task


async def error_of(task: asyncio.Task[None]) -> InferFluxError:
    with pytest.raises(InferFluxError) as caught:
        await asyncio.wait_for(task, 5)
    return caught.value


async def test_without_grace_the_oldest_gives_way_to_a_newcomer() -> None:
    receiving = Receiving(2, grace_s=0.0, time_limit_s=60)
    never, arrived = asyncio.Event(), asyncio.Event()
    oldest = await start(receiving, never)
    younger = await start(receiving, arrived)
    newest = await start(receiving, arrived)
    assert isinstance(await error_of(oldest), ResourceExhausted)
    assert len(receiving) == 2
    arrived.set()
    await asyncio.gather(younger, newest)
    assert len(receiving) == 0


async def test_within_its_grace_a_message_is_waited_for() -> None:
    receiving = Receiving(1, grace_s=60, time_limit_s=60)
    arrived = asyncio.Event()
    first = await start(receiving, arrived)
    taken = asyncio.Event()
    others = [asyncio.create_task(hold(receiving, arrived, taken)) for _ in range(20)]
    assert len(receiving) == 1
    assert not taken.is_set()
    arrived.set()
    await asyncio.wait_for(asyncio.gather(first, *others), 5)
    assert len(receiving) == 0


async def test_after_its_grace_a_message_gives_way_to_one_that_waits() -> None:
    receiving = Receiving(1, grace_s=0.05, time_limit_s=60)
    never = asyncio.Event()
    slow = await start(receiving, never)
    next_one = await start(receiving, never)
    assert isinstance(await error_of(slow), ResourceExhausted)
    next_one.cancel()


async def test_calls_that_wait_are_not_all_woken_when_one_place_is_taken_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    victim = FairPlaces.victim

    def counted(places: FairPlaces[Any], newcomer: Hashable) -> Victim[Any]:
        nonlocal looks
        looks += 1
        return victim(places, newcomer)

    monkeypatch.setattr(FairPlaces, "victim", counted)
    receiving = Receiving(1, grace_s=0.02, time_limit_s=60)
    never, taken = asyncio.Event(), asyncio.Event()
    first = await start(receiving, never)
    others = [asyncio.create_task(hold(receiving, never, taken)) for _ in range(300)]
    for displaced in [first, *others[:9]]:
        assert isinstance(await error_of(displaced), ResourceExhausted)
    # 300 begin to wait, and 10 lose their place; each of them wakes some. All of them would be 3,300.
    assert looks < 2000
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    assert len(receiving) == 0


async def test_a_waiter_that_leaves_passes_its_turn_on() -> None:
    receiving = Receiving(1, grace_s=60, time_limit_s=60)
    arrived, never = asyncio.Event(), asyncio.Event()
    first = await start(receiving, arrived)
    leaving = asyncio.create_task(hold(receiving, never, asyncio.Event()))
    taken = asyncio.Event()
    staying = asyncio.create_task(hold(receiving, arrived, taken))
    await asyncio.sleep(0)
    leaving.cancel()
    arrived.set()
    await asyncio.wait_for(asyncio.gather(first, staying), 5)
    assert taken.is_set()
    assert len(receiving) == 0


async def test_a_message_that_never_arrives_times_out() -> None:
    receiving = Receiving(1, grace_s=60, time_limit_s=0.02)
    error = await error_of(await start(receiving, asyncio.Event()))
    assert isinstance(error, DeadlineExceeded)
    assert len(receiving) == 0


async def test_a_timeout_of_the_callers_own_passes_through() -> None:
    receiving = Receiving(1, grace_s=60, time_limit_s=60)
    with pytest.raises(TimeoutError):
        async with receiving.place():
            raise TimeoutError
    assert len(receiving) == 0
