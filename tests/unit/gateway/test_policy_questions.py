"""Calls that are admitted together: which go in one question, and which answer each gets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from inferflux.common.contract.errors import InferFluxError, PermissionDenied, Unavailable
from inferflux.gateway.policy.policy_questions import MOST_REQUESTS, PolicyQuestions
from inferflux.v1 import policy_pb2

Outcome = policy_pb2.AdmitResponse | InferFluxError
AdmitCalls = PolicyQuestions[policy_pb2.AdmitRequest, policy_pb2.AdmitResponse]


class Policy:
    """Answers when it is let: a call is refused whose request id says so."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.may_answer = asyncio.Event()
        self.is_away = False

    async def ask(self, calls: Sequence[policy_pb2.AdmitRequest]) -> Sequence[Outcome]:
        self.asked.append([call.request_id for call in calls])
        await self.may_answer.wait()
        if self.is_away:
            return [Unavailable("away") for _ in calls]
        return [
            PermissionDenied(call.request_id)
            if call.request_id.startswith("refused")
            else policy_pb2.AdmitResponse(tenant=call.request_id)
            for call in calls
        ]


def call(request_id: str, credential: str = "") -> policy_pb2.AdmitRequest:
    return policy_pb2.AdmitRequest(request_id=request_id, credential=credential)


def ask(
    calls: AdmitCalls, *requests: policy_pb2.AdmitRequest
) -> list[asyncio.Task[policy_pb2.AdmitResponse]]:
    return [asyncio.create_task(calls.answer(request)) for request in requests]


async def let_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_call_goes_alone_and_those_that_come_meanwhile_go_together() -> None:
    policy = Policy()
    calls = AdmitCalls(policy.ask, at_once=1)
    tasks = ask(calls, call("first"))
    await let_run()
    tasks += ask(calls, call("a"), call("refused-b"), call("c"))
    await let_run()
    assert policy.asked == [["first"]]
    policy.may_answer.set()
    first, a, b, c = await asyncio.gather(*tasks, return_exceptions=True)
    assert policy.asked == [["first"], ["a", "refused-b", "c"]]
    assert [each.tenant for each in (first, a, c) if isinstance(each, policy_pb2.AdmitResponse)] == [
        "first", "a", "c",
    ]  # fmt: skip
    assert isinstance(b, PermissionDenied)
    assert b.message == "refused-b"


async def test_a_question_is_bounded_in_calls_and_in_bytes() -> None:
    policy = Policy()
    calls = AdmitCalls(policy.ask, at_once=1)
    tasks = ask(calls, call("first"))
    await let_run()
    tasks += ask(calls, *(call(f"r{i}") for i in range(MOST_REQUESTS + 1)))
    tasks += ask(calls, *(call(f"large{i}", "x" * 40_000) for i in range(3)))
    policy.may_answer.set()
    answers = await asyncio.gather(*tasks)
    assert [len(asked) for asked in policy.asked] == [1, MOST_REQUESTS, 2, 1, 1]
    assert len({answer.tenant for answer in answers}) == len(answers)


async def test_a_caller_that_has_left_is_not_asked_about_and_the_others_are() -> None:
    policy = Policy()
    calls = AdmitCalls(policy.ask, at_once=1)
    (first,) = ask(calls, call("first"))
    await let_run()
    leaves, stays = ask(calls, call("leaves"), call("stays"))
    await let_run()
    first.cancel()
    leaves.cancel()
    await let_run()
    policy.may_answer.set()
    assert (await stays).tenant == "stays"
    assert policy.asked == [["first"], ["stays"]]


async def test_after_policy_was_away_calls_are_admitted_again() -> None:
    policy = Policy()
    policy.is_away = True
    policy.may_answer.set()
    calls = AdmitCalls(policy.ask, at_once=2)
    answers = await asyncio.gather(*ask(calls, *(call(f"r{i}") for i in range(9))), return_exceptions=True)
    assert {type(answer) for answer in answers} == {Unavailable}
    policy.is_away = False
    assert (await calls.answer(call("back"))).tenant == "back"


async def test_a_defect_ends_the_calls_it_hit_and_no_others() -> None:
    class Broken(Policy):
        async def ask(self, calls: Sequence[policy_pb2.AdmitRequest]) -> Sequence[Outcome]:
            if not self.asked:
                self.asked.append([])
                raise RuntimeError("a defect")
            return await super().ask(calls)

    policy = Broken()
    policy.may_answer.set()
    calls = AdmitCalls(policy.ask, at_once=1)
    with pytest.raises(RuntimeError, match="a defect"):
        await calls.answer(call("hit"))
    assert (await calls.answer(call("next"))).tenant == "next"


async def test_an_answer_about_fewer_calls_leaves_none_waiting() -> None:
    class Short(Policy):
        async def ask(self, calls: Sequence[policy_pb2.AdmitRequest]) -> Sequence[Outcome]:
            return (await super().ask(calls))[:-1]

    policy = Short()
    policy.may_answer.set()
    calls = AdmitCalls(policy.ask, at_once=1)
    async with asyncio.timeout(20):
        answers = await asyncio.gather(
            *ask(calls, *(call(f"r{i}") for i in range(3))), return_exceptions=True
        )
    assert {type(answer) for answer in answers} == {Unavailable}
