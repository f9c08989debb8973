"""Settling what requests used, while policy is away and when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from inferflux.common.calls.audit.writer import NO_AUDIT
from inferflux.common.contract.errors import InferFluxError, InvalidArgument, Unavailable
from inferflux.common.process.tasks import Background
from inferflux.gateway.policy.ledger import RETRIES_S, FinishedRequest, Ledger
from inferflux.v1 import generation_pb2, policy_pb2

FINISHED = FinishedRequest(
    method="Chat",
    tenant="acme",
    key_id="key_0",
    request_id="r1",
    model="demo",
    outcome="stop",
    usage=generation_pb2.Usage(prompt_tokens=3),
    duration_s=1.0,
    attempt_id="a1",
)


class Policy:
    """Ends its first calls with these errors."""

    def __init__(self, *errors: InferFluxError) -> None:
        self.errors = list(errors)
        self.asked: list[policy_pb2.SettleRequest] = []

    async def settle(self, request: policy_pb2.SettleRequest) -> None:
        self.asked.append(request)
        if self.errors:
            raise self.errors.pop(0)


async def settled(policy: Policy, retries_s: Sequence[float]) -> list[str]:
    """Have a request settled; what the log says was not."""
    background = Background()
    with capture_logs() as lines:
        Ledger(policy, background, NO_AUDIT, retries_s=retries_s).settle(FINISHED)
        await background.finish(None)
    return [line["why"] for line in lines if line["event"] == "usage was not settled"]


async def test_it_is_settled_again_until_policy_takes_it() -> None:
    policy = Policy(*[Unavailable("away")] * 6)
    assert await settled(policy, [0.0] * 9) == []
    assert len(policy.asked) == 7
    assert {(each.request_id, each.usage.prompt_tokens) for each in policy.asked} == {("r1", 3)}


@pytest.mark.parametrize(("error", "times"), [(Unavailable("away"), 3), (InvalidArgument("no"), 1)])
async def test_what_is_not_settled_in_the_end_is_logged(error: InferFluxError, times: int) -> None:
    policy = Policy(*[error] * 9)
    assert await settled(policy, [0.0] * 2) == [error.message]
    assert len(policy.asked) == times


async def test_what_a_gateway_leaves_unsettled_when_it_ends_is_logged() -> None:
    policy, background = Policy(Unavailable("away")), Background()
    with capture_logs() as lines:
        Ledger(policy, background, NO_AUDIT, retries_s=[3600.0]).settle(FINISHED)
        while not policy.asked:
            await asyncio.sleep(0)
        await background.finish(0.0)
    assert [line["why"] for line in lines] == ["away"]


def test_an_outage_of_some_minutes_costs_no_usage() -> None:
    assert sum(RETRIES_S) > 600
