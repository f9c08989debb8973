"""Settling: what a request used is added to its tenant once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from harness.policy import refusal, until

from inferflux.common.contract.errors import InvalidArgument, from_rpc
from inferflux.policy.storage.usage_store import UsageStore
from inferflux.v1 import generation_pb2, policy_pb2

from .conftest import Running, StartPolicy


def ended(the_id: str, of_tenant: str, /, **changes: Any) -> policy_pb2.SettleRequest:
    fields: dict[str, Any] = {
        "request_id": the_id,
        "attempt_id": "a1",
        "tenant": of_tenant,
        "key_id": "key_" + "0" * 16,
        "model": "demo",
        "outcome": "stop",
        "usage": generation_pb2.Usage(prompt_tokens=10, cached_prompt_tokens=4, completion_tokens=5),
    }
    return policy_pb2.SettleRequest(**(fields | changes))


async def test_settled_requests_add_up(running: Running) -> None:
    for i in range(3):
        await running.policy.stub.Settle(ended(f"add-{i}", "adds"))
    assert await UsageStore(running.redis, timeout_s=5).usage("adds") == {
        "requests": 3,
        "prompt_tokens": 30,
        "cached_prompt_tokens": 12,
        "completion_tokens": 15,
    }


async def test_settling_a_request_any_number_of_times_counts_it_once(running: Running) -> None:
    await asyncio.gather(*(running.policy.stub.Settle(ended("same", "once")) for _ in range(50)))
    usage = await UsageStore(running.redis, timeout_s=5).usage("once")
    assert usage["requests"] == 1
    assert usage["completion_tokens"] == 5


async def test_a_request_id_that_is_used_again_counts_again(running: Running) -> None:
    """Each use of an id is a job of its own, however soon it comes."""
    for attempt in ("a1", "a2", "a1"):
        await running.policy.stub.Settle(ended("again", "reuses", attempt_id=attempt))
    usage = await UsageStore(running.redis, timeout_s=5).usage("reuses")
    assert (usage["requests"], usage["completion_tokens"]) == (2, 10)


async def test_a_gateway_that_names_no_attempt_has_its_requests_counted_once_by_id(running: Running) -> None:
    """As gateways of an earlier version do, while others are upgraded."""
    for request_id in ("first", "second", "first"):
        await running.policy.stub.Settle(ended(request_id, "elder", attempt_id=""))
    usage = await UsageStore(running.redis, timeout_s=5).usage("elder")
    assert (usage["requests"], usage["completion_tokens"]) == (2, 10)


async def test_what_a_job_used_more_than_settled_before_is_added(running: Running) -> None:
    """Gateways settle what they saw; whatever their order, the largest counts."""
    for n in (7, 3, 12, 12):
        usage = generation_pb2.Usage(prompt_tokens=10, completion_tokens=n)
        await running.policy.stub.Settle(ended("partly", "parts", usage=usage))
    assert await UsageStore(running.redis, timeout_s=5).usage("parts") == {
        "requests": 1,
        "prompt_tokens": 10,
        "completion_tokens": 12,
    }


async def test_two_tenants_may_use_the_same_request_id(running: Running) -> None:
    for tenant in ("left", "right"):
        await running.policy.stub.Settle(ended("shared-id", tenant))
    store = UsageStore(running.redis, timeout_s=5)
    assert [(await store.usage(t))["requests"] for t in ("left", "right")] == [1, 1]


async def test_a_settled_request_is_forgotten_in_time_and_leaves_only_its_counters(
    start_policy: StartPolicy, running: Running
) -> None:
    policy = await start_policy(
        running.policy.environment["INFERFLUX_REDIS_URL"], INFERFLUX_POLICY_SETTLED_MEMORY_S="1"
    )
    await policy.stub.Settle(ended("short", "memory"))
    marker = "inferflux:{memory}:settled:short:a1"
    assert await running.redis.exists(marker)

    async def is_forgotten() -> bool:
        return not await running.redis.exists(marker)

    await until(is_forgotten)
    await policy.stub.Settle(ended("short", "memory"))
    assert (await UsageStore(running.redis, timeout_s=5).usage("memory"))["requests"] == 2


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("tenant", {"tenant": "a}b"}),
        ("request_id", {"request_id": ""}),
        ("attempt_id", {"attempt_id": "a}:b"}),
        ("key_id", {"key_id": "x"}),
        ("outcome", {"outcome": "Not Fine"}),
        ("usage.cached_prompt_tokens", {"usage": generation_pb2.Usage(cached_prompt_tokens=1)}),
    ],
)
async def test_a_wrong_field_is_named_and_nothing_is_counted(
    running: Running, field: str, changes: dict[str, Any]
) -> None:
    before = await running.redis.dbsize()
    raised = from_rpc(await refusal(running.policy.stub.Settle(ended("bad", "wrong", **changes))))
    assert isinstance(raised, InvalidArgument)
    assert raised.field == field
    assert await running.redis.dbsize() == before


async def test_requests_of_several_tenants_that_are_settled_together_each_count_once(
    running: Running,
) -> None:
    """Also where one question names a job twice, with more tokens the second time."""
    stub, store = running.policy.stub, UsageStore(running.redis, timeout_s=5)
    more = generation_pb2.Usage(prompt_tokens=10, cached_prompt_tokens=4, completion_tokens=8)
    asked = [ended(f"many-{i}", f"together-{i % 3}") for i in range(30)]
    asked += [ended("many-0", "together-0", usage=more), ended("bad", "together-1", outcome="?")]
    for _ in range(2):
        response = await stub.SettleMany(policy_pb2.SettleManyRequest(requests=asked))
        assert [each.HasField("settled") for each in response.answers] == [True] * 31 + [False]
    assert (await store.usage("together-0"))["completion_tokens"] == 53
    for tenant in ("together-1", "together-2"):
        usage = await store.usage(tenant)
        assert (usage["requests"], usage["completion_tokens"]) == (10, 50)
