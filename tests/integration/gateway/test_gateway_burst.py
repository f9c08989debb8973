"""Many calls at the same moment: they wait for policy in order, and only a full queue refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import grpc
import grpc.aio
import pytest
from harness.gateway import GatewayProcess
from harness.policy import SERVICE_KEY

from inferflux.common.calls import grpc_client
from inferflux.common.calls.calls import CallContext
from inferflux.common.contract.errors import (
    InferFluxError,
    InvalidArgument,
    ResourceExhausted,
    Unauthenticated,
    to_status,
)
from inferflux.gateway.policy.admission import Admission
from inferflux.gateway.policy.caller import Caller
from inferflux.v1 import model_pb2, policy_pb2

CALL = CallContext("r1", credential="ifx_" + "A" * 43)
COUNTED = replace(CALL, is_counted=True)


class SlowPolicy:
    """Answers one call after the other, each after `answer_s`. It admits and settles, and no more."""

    answer_s = 0.02

    def __init__(self) -> None:
        self.asked = 0
        self.max_priority: int | None = None
        self.valid_ms = 0
        self.is_revoked = False
        self.n_at_once = self.most_at_once = 0
        self.settled: list[list[str]] = []
        self._lock = asyncio.Lock()

    async def Admit(self, request: policy_pb2.AdmitRequest, context: Any) -> policy_pb2.AdmitResponse:  # noqa: N802, ARG002
        self.asked += 1
        self.n_at_once += 1
        self.most_at_once = max(self.most_at_once, self.n_at_once)
        async with self._lock:
            await asyncio.sleep(self.answer_s)
        self.n_at_once -= 1
        if self.is_revoked:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "revoked")
        return policy_pb2.AdmitResponse(
            tenant="acme",
            key_id="key_0123456789abcdef",
            max_priority=self.max_priority,
            valid_ms=self.valid_ms,
        )

    async def AdmitMany(  # noqa: N802
        self, request: policy_pb2.AdmitManyRequest, context: Any
    ) -> policy_pb2.AdmitManyResponse:
        admitted = await asyncio.gather(*(self.Admit(each, context) for each in request.requests))
        return policy_pb2.AdmitManyResponse(
            answers=[policy_pb2.AdmitAnswer(admitted=each) for each in admitted]
        )

    async def Settle(self, request: policy_pb2.SettleRequest, context: Any) -> policy_pb2.SettleResponse:  # noqa: N802, ARG002
        self.settled.append([request.request_id])
        await asyncio.sleep(self.answer_s)
        return policy_pb2.SettleResponse()

    async def SettleMany(  # noqa: N802
        self,
        request: policy_pb2.SettleManyRequest,
        context: Any,  # noqa: ARG002
    ) -> policy_pb2.SettleManyResponse:
        ids = [each.request_id for each in request.requests]
        self.settled.append(ids)
        answers = []
        for request_id in ids:
            if request_id.startswith("refused"):
                refused = to_status(InvalidArgument("no", field=request_id)).SerializeToString()
                answers.append(policy_pb2.SettleAnswer(refused=refused))
            else:
                answers.append(policy_pb2.SettleAnswer(settled=policy_pb2.SettleResponse()))
        return policy_pb2.SettleManyResponse(answers=answers)


@dataclass(frozen=True)
class Slow:
    policy: SlowPolicy
    channel: grpc.aio.Channel


@pytest.fixture
async def slow() -> AsyncIterator[Slow]:
    server = grpc.aio.server()
    policy = SlowPolicy()
    server.add_registered_method_handlers(
        "inferflux.v1.PolicyService",
        {
            "Admit": grpc.unary_unary_rpc_method_handler(
                policy.Admit, policy_pb2.AdmitRequest.FromString, policy_pb2.AdmitResponse.SerializeToString
            ),
            "AdmitMany": grpc.unary_unary_rpc_method_handler(
                policy.AdmitMany,
                policy_pb2.AdmitManyRequest.FromString,
                policy_pb2.AdmitManyResponse.SerializeToString,
            ),
            "Settle": grpc.unary_unary_rpc_method_handler(
                policy.Settle,
                policy_pb2.SettleRequest.FromString,
                policy_pb2.SettleResponse.SerializeToString,
            ),
            "SettleMany": grpc.unary_unary_rpc_method_handler(
                policy.SettleMany,
                policy_pb2.SettleManyRequest.FromString,
                policy_pb2.SettleManyResponse.SerializeToString,
            ),
        },
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc_client.channel(f"127.0.0.1:{port}")
    yield Slow(policy, channel)
    await channel.close()
    await server.stop(0)


async def test_calls_wait_for_a_slow_policy_longer_than_one_answer_may_take(slow: Slow) -> None:
    admission = Admission(slow.channel, service_key=SERVICE_KEY, timeout_s=1.0, at_once=4)
    callers = await asyncio.gather(*(admission.admit("inference", CALL) for _ in range(150)))
    assert {caller.tenant for caller in callers} == {"acme"}
    assert slow.policy.most_at_once <= 4


async def test_calls_of_a_key_share_an_answer_that_holds_for_others(slow: Slow) -> None:
    """The answers of this policy are older than they hold when they come."""
    slow.policy.valid_ms = 1
    admission = Admission(slow.channel, service_key=SERVICE_KEY, timeout_s=5.0)
    await admission.admit("inference", COUNTED)
    callers = await asyncio.gather(*(admission.admit("inference", COUNTED) for _ in range(200)))
    assert {caller.tenant for caller in callers} == {"acme"}
    assert slow.policy.asked <= 4


async def test_policy_is_asked_about_each_call_where_its_answers_hold_for_one(slow: Slow) -> None:
    admission = Admission(slow.channel, service_key=SERVICE_KEY, timeout_s=5.0)
    for _ in range(2):
        await asyncio.gather(*(admission.admit("inference", COUNTED) for _ in range(20)))
    assert slow.policy.asked == 40


async def test_calls_that_wait_for_an_answer_learn_that_the_key_was_revoked(slow: Slow) -> None:
    slow.policy.valid_ms = 1
    admission = Admission(slow.channel, service_key=SERVICE_KEY, timeout_s=5.0)
    await admission.admit("inference", COUNTED)
    await asyncio.sleep(0.01)
    slow.policy.is_revoked = True
    calls = [admission.admit("inference", COUNTED) for _ in range(4)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(answer, InferFluxError) for answer in answers)


async def test_a_call_that_leaves_does_not_take_the_answer_of_others_along(slow: Slow) -> None:
    slow.policy.valid_ms = 1
    admission = Admission(slow.channel, service_key=SERVICE_KEY, timeout_s=5.0)
    await admission.admit("inference", COUNTED)
    calls = [asyncio.create_task(admission.admit("inference", COUNTED)) for _ in range(10)]
    await asyncio.sleep(0.005)
    for leaving in (calls[0], calls[5]):
        leaving.cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(answer, Caller) for answer in answers) == 8


async def test_a_full_queue_refuses_one_more(slow: Slow) -> None:
    admission = Admission(slow.channel, service_key=SERVICE_KEY, timeout_s=5.0, at_once=1, known=3, others=3)
    answers = await asyncio.gather(
        *(admission.admit("inference", CALL) for _ in range(10)), return_exceptions=True
    )
    assert sum(isinstance(answer, ResourceExhausted) for answer in answers) == 6
    assert (await admission.admit("inference", CALL)).tenant == "acme"


async def test_a_caller_that_leaves_gives_its_place_back(slow: Slow) -> None:
    admission = Admission(slow.channel, service_key=SERVICE_KEY, timeout_s=5.0, at_once=1, known=3, others=3)
    leaving = [asyncio.create_task(admission.admit("inference", CALL)) for _ in range(4)]
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    callers = await asyncio.gather(*(admission.admit("inference", CALL) for _ in range(4)))
    assert len(callers) == 4


async def test_requests_that_end_at_about_the_same_time_are_settled_in_few_questions(slow: Slow) -> None:
    admission = Admission(slow.channel, service_key=SERVICE_KEY, timeout_s=5.0)
    ids = [*(f"r{i}" for i in range(30)), "refused", *(f"r{i}" for i in range(30, 60))]
    outcomes = await asyncio.gather(
        *(admission.settle(policy_pb2.SettleRequest(request_id=request_id)) for request_id in ids),
        return_exceptions=True,
    )
    assert sorted(each for question in slow.policy.settled for each in question) == sorted(ids)
    assert len(slow.policy.settled) <= 3
    assert [ids[i] for i, outcome in enumerate(outcomes) if outcome is not None] == ["refused"]
    assert isinstance(outcomes[30], InvalidArgument)


async def test_what_a_call_announces_puts_it_ahead_as_far_as_its_key_may(slow: Slow) -> None:
    """The keys that were admitted before may have 4; another key has waited longer and says 100."""
    slow.policy.max_priority = 4
    admission = Admission(slow.channel, service_key=SERVICE_KEY, timeout_s=5.0, at_once=1)
    await admission.admit("inference", CALL)
    admitted: list[str] = []

    async def call(name: str, priority: int, credential: str = CALL.credential) -> None:
        await admission.admit(
            "inference", CallContext(name, credential=credential, announced_priority=priority)
        )
        admitted.append(name)

    calls = [asyncio.create_task(call("inside", 0))]
    await asyncio.sleep(0)
    stranger = "ifx_" + "B" * 43
    asked = (("stranger", 100, stranger), ("plain", 0), ("low", -1), ("four", 4), ("hundred", 100))
    for about in asked:
        calls.append(asyncio.create_task(call(*about)))
        await asyncio.sleep(0)
    await asyncio.gather(*calls)
    assert admitted == ["inside", "four", "hundred", "plain", "low", "stranger"]


@pytest.mark.parametrize("key", ["", "hunter2", "ifx_" + "a" * 42, "ifx_" + "ä" * 43])
async def test_policy_is_not_asked_for_what_cannot_be_a_key(slow: Slow, key: str) -> None:
    admission = Admission(slow.channel, service_key=SERVICE_KEY, timeout_s=5.0)
    with pytest.raises(Unauthenticated):
        await admission.admit("inference", CallContext("r1", credential=key))
    assert slow.policy.asked == 0


async def test_a_thousand_calls_at_once_are_all_admitted(gateway: GatewayProcess, key: str) -> None:
    metadata = grpc_client.outgoing(api_key=key)
    answers = await asyncio.gather(
        *(
            gateway.models.ListModels(model_pb2.ListModelsRequest(), metadata=metadata, timeout=120)
            for _ in range(1000)
        )
    )
    assert len(answers) == 1000
