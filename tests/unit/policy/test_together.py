"""What is asked in one turn of the loop is asked once, and each gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from inferflux.policy.storage.together import Together


class Asked:
    """Doubles numbers; refuses odd ones. Holds its answers back until it is let go."""

    def __init__(self) -> None:
        self.questions: list[Sequence[int]] = []
        self.go = asyncio.Event()

    async def __call__(self, numbers: Sequence[int]) -> list[int | Exception]:
        self.questions.append(numbers)
        await self.go.wait()
        return [ValueError(f"{number} is odd") if number % 2 else 2 * number for number in numbers]


async def test_what_comes_in_one_turn_is_asked_together_in_its_order_and_answered_each() -> None:
    asked = Asked()
    asked.go.set()
    together = Together(asked, most=10)
    answers = await asyncio.gather(*(together.answer(n) for n in (4, 3, 4, 8)), return_exceptions=True)
    assert asked.questions == [[4, 3, 4, 8]]
    assert [str(answer) for answer in answers] == ["8", "3 is odd", "8", "16"]


async def test_no_question_has_more_than_it_may() -> None:
    asked = Asked()
    asked.go.set()
    together = Together(asked, most=2)
    assert await asyncio.gather(*(together.answer(n) for n in (2, 4, 6, 8, 10))) == [4, 8, 12, 16, 20]
    assert asked.questions == [[2, 4], [6, 8], [10]]


async def test_what_comes_later_does_not_wait_for_what_is_under_way() -> None:
    asked = Asked()
    together = Together(asked, most=10)
    first = asyncio.create_task(together.answer(2))
    while not asked.questions:
        await asyncio.sleep(0)
    second = asyncio.create_task(together.answer(4))
    while len(asked.questions) < 2:
        await asyncio.sleep(0)
    asked.go.set()
    assert (await first, await second) == (4, 8)


async def test_who_leaves_takes_no_other_along() -> None:
    asked = Asked()
    together = Together(asked, most=10)
    leaves, stays = (asyncio.create_task(together.answer(n)) for n in (2, 4))
    while not asked.questions:
        await asyncio.sleep(0)
    leaves.cancel()
    asked.go.set()
    assert await stays == 8
    with pytest.raises(asyncio.CancelledError):
        await leaves


async def test_an_error_of_the_question_is_told_to_each_that_asked() -> None:
    async def fail(_: Sequence[int]) -> list[int | Exception]:
        raise ConnectionError("away")

    together = Together(fail, most=10)
    answers = await asyncio.gather(together.answer(1), together.answer(2), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["away", "away"]
