"""Asks policy about calls: those that come while it is asked go together in the next question."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from google.protobuf.message import Message

from inferflux.common.contract.errors import InferFluxError, Unavailable, from_status
from inferflux.common.process.tasks import Background
from inferflux.v1 import policy_pb2

MOST_REQUESTS = 64
_MOST_BYTES = 64 << 10

_Request = TypeVar("_Request", bound=Message)
_Answer = TypeVar("_Answer")


class PolicyQuestions(Generic[_Request, _Answer]):
    """Asks one question at once while few calls come, and for many calls at a time while many do.

    Args:
        ask: asks policy about these calls; each gets an outcome of its own.
        at_once: questions under way at the same time.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[_Request]], Awaitable[Sequence[_Answer | InferFluxError]]],
        *,
        at_once: int,
    ) -> None:
        self._ask = ask
        self._n_free = at_once
        self._waiting: deque[tuple[_Request, asyncio.Future[_Answer]]] = deque()
        self._background = Background()

    async def answer(self, request: _Request) -> _Answer:
        """Raises:
        InferFluxError: policy says no, or does not answer.
        """
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        if self._n_free:
            self._n_free -= 1
            self._background.start(self._ask_on())
        return await answer

    async def _ask_on(self) -> None:
        """Ask until nothing waits."""
        try:
            while calls := self._take():
                await self._ask_about(calls)
        finally:
            self._n_free += 1

    def _take(self) -> list[tuple[_Request, asyncio.Future[_Answer]]]:
        """The calls of the next question; those whose callers have left are left out."""
        calls: list[tuple[_Request, asyncio.Future[_Answer]]] = []
        n_bytes = 0
        while self._waiting and len(calls) < MOST_REQUESTS:
            request, answer = self._waiting[0]
            n_bytes += request.ByteSize()
            if calls and n_bytes > _MOST_BYTES:
                break
            self._waiting.popleft()
            if not answer.done():
                calls.append((request, answer))
        return calls

    async def _ask_about(self, calls: Sequence[tuple[_Request, asyncio.Future[_Answer]]]) -> None:
        outcomes: Sequence[_Answer | Exception]
        try:
            outcomes = await self._ask([request for request, _ in calls])
            if len(outcomes) != len(calls):
                message = f"policy answered about {len(outcomes)} of {len(calls)} calls"
                raise Unavailable(message, reason="POLICY_UNAVAILABLE")
        except Exception as defect:  # noqa: BLE001  # each of them tells it as its own
            outcomes = [defect for _ in calls]
        for (_, answer), outcome in zip(calls, outcomes, strict=True):
            if answer.done():
                continue
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)


def admitted_of(response: policy_pb2.AdmitManyResponse) -> list[policy_pb2.AdmitResponse | InferFluxError]:
    """Return policy's answer about each call."""
    return [
        each.admitted if each.HasField("admitted") else from_status(each.refused) for each in response.answers
    ]


def settled_of(response: policy_pb2.SettleManyResponse) -> list[policy_pb2.SettleResponse | InferFluxError]:
    """Return policy's answer about each request that ended."""
    return [
        each.settled if each.HasField("settled") else from_status(each.refused) for each in response.answers
    ]
