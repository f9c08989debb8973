"""Questions that come at the same time go together: one round trip answers all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from inferflux.common.process.tasks import Background

_Question = TypeVar("_Question")
_Answer = TypeVar("_Answer")


class Together(Generic[_Question, _Answer]):
    """Asks once what is asked in one turn of the event loop.

    Args:
        ask: gets the questions of a turn; returns an answer, or the exception to raise, for each.
        most: questions at a time.
    """

    def __init__(
        self, ask: Callable[[Sequence[_Question]], Awaitable[Sequence[_Answer | Exception]]], *, most: int
    ) -> None:
        self._ask = ask
        self._most = most
        self._waiting: list[tuple[_Question, asyncio.Future[_Answer]]] = []
        self._background = Background()

    async def answer(self, question: _Question) -> _Answer:
        """Raises:
        Exception: as `ask` returned it for this question, or raised it for all.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Answer] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._begin)
        self._waiting.append((question, answer))
        return await answer

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, []
        # A caller that has left asks nothing any more.
        waiting = [each for each in waiting if not each[1].done()]
        for start in range(0, len(waiting), self._most):
            self._background.start(self._ask_about(waiting[start : start + self._most]))

    async def _ask_about(self, waiting: Sequence[tuple[_Question, asyncio.Future[_Answer]]]) -> None:
        answers: Sequence[_Answer | Exception]
        try:
            answers = await self._ask([question for question, _ in waiting])
        except Exception as error:  # noqa: BLE001  # each of them tells it as its own
            answers = [error for _ in waiting]
        for (_, future), answer in zip(waiting, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
