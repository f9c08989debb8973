"""Places for questions to policy."""

from __future__ import annotations

import asyncio

import pytest

from inferflux.common.contract.errors import ResourceExhausted
from inferflux.gateway.policy.gate import Gate


class Visits:
    """Calls that pass a gate; each holds its place until it is let go."""

    def __init__(self, gate: Gate) -> None:
        self.inside: list[str] = []
        self._gate = gate
        self._leave: dict[str, asyncio.Event] = {}

    async def begin(self, name: str, *, is_preferred: bool = False, priority: int = 0) -> asyncio.Task[None]:
        task = asyncio.create_task(self._visit(name, is_preferred=is_preferred, priority=priority))
        await settled()
        return task

    async def end(self, name: str) -> None:
        self._leave[name].set()
        await settled()

    async def _visit(self, name: str, *, is_preferred: bool, priority: int) -> None:
        self._leave[name] = asyncio.Event()
        async with self._gate.place(is_preferred=is_preferred, priority=priority):
            self.inside.append(name)
            await self._leave[name].wait()


async def settled() -> None:
    """Let every task run as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_preferred_calls_go_before_others_that_wait_longer() -> None:
    visits = Visits(Gate(at_once=1, preferred=10, others=10))
    tasks = [await visits.begin("first")]
    tasks += [await visits.begin(f"stranger-{i}") for i in range(3)]
    tasks += [await visits.begin(f"known-{i}", is_preferred=True) for i in range(2)]
    for name in ("first", "known-0", "known-1", "stranger-0", "stranger-1", "stranger-2"):
        assert visits.inside[-1] == name
        await visits.end(name)
    await asyncio.gather(*tasks)


async def test_a_full_lane_refuses_and_leaves_the_other_open() -> None:
    visits = Visits(Gate(at_once=1, preferred=1, others=1))
    tasks = [await visits.begin("inside"), await visits.begin("stranger")]
    with pytest.raises(ResourceExhausted, match="1 calls wait to be admitted already"):
        await (await visits.begin("one-too-many"))
    tasks.append(await visits.begin("known", is_preferred=True))
    for name in ("inside", "known", "stranger"):
        await visits.end(name)
    await asyncio.gather(*tasks)
    assert visits.inside == ["inside", "known", "stranger"]


async def test_urgent_calls_go_first_and_push_the_least_urgent_out() -> None:
    visits = Visits(Gate(at_once=1, preferred=2, others=1))
    tasks = [await visits.begin("inside")]
    tasks.append(await visits.begin("known", is_preferred=True))
    pushed_out = await visits.begin("known-later", is_preferred=True)
    tasks.append(await visits.begin("urgent", is_preferred=True, priority=9))
    with pytest.raises(ResourceExhausted, match="2 calls wait to be admitted already"):
        await pushed_out
    for name in ("inside", "urgent", "known"):
        assert visits.inside[-1] == name
        await visits.end(name)
    await asyncio.gather(*tasks)


async def test_no_priority_counts_among_strangers() -> None:
    visits = Visits(Gate(at_once=1, preferred=1, others=1))
    tasks = [await visits.begin("inside"), await visits.begin("stranger")]
    with pytest.raises(ResourceExhausted):
        await (await visits.begin("urgent-stranger", priority=100))
    for name in ("inside", "stranger"):
        await visits.end(name)
    await asyncio.gather(*tasks)


async def test_a_call_that_is_cancelled_while_it_waits_or_just_gets_its_place_gives_it_back() -> None:
    visits = Visits(Gate(at_once=1, preferred=10, others=10))
    first = await visits.begin("first")
    gone = await visits.begin("gone")
    second = await visits.begin("second")
    gone.cancel()
    await settled()
    third = await visits.begin("third")
    visits._leave["first"].set()
    await asyncio.sleep(0)  # the place is on its way to the second, which does not have it yet
    second.cancel()
    await settled()
    assert "third" in visits.inside
    await visits.end("third")
    await asyncio.gather(first, third)
    last = await visits.begin("last")
    assert visits.inside[-1] == "last"
    await visits.end("last")
    await last


async def test_as_many_are_inside_as_there_are_places() -> None:
    visits = Visits(Gate(at_once=3, preferred=10, others=10))
    tasks = [await visits.begin(str(i)) for i in range(5)]
    assert visits.inside == ["0", "1", "2"]
    for i in range(5):
        await visits.end(str(i))
    await asyncio.gather(*tasks)
