"""Guardrails with every process: an answer ends before what is blocked, and others are as they were."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import grpc.aio
import pytest
from harness.client import Client, prompt

from inferflux.cli.stack import Stack
from inferflux.common.calls import grpc_client
from inferflux.common.contract.errors import from_rpc
from inferflux.v1 import generation_pb2, guardrails_pb2, policy_pb2, policy_pb2_grpc

pytestmark = pytest.mark.e2e

TENANT = f"guarded-{uuid.uuid4().hex[:8]}"


@pytest.fixture
async def policy(client: Client) -> policy_pb2_grpc.PolicyServiceAsyncStub:
    """Policy, through the gateway."""
    return policy_pb2_grpc.PolicyServiceStub(client.channel)


@pytest.fixture
async def guarded(
    stack: Stack, client: Client, policy: policy_pb2_grpc.PolicyServiceAsyncStub
) -> AsyncIterator[Client]:
    """A client of a tenant of its own."""
    request = policy_pb2.CreateApiKeyRequest(tenant=TENANT, name="e2e", scopes=["inference"])
    made = await policy.CreateApiKey(
        request, metadata=grpc_client.outgoing(api_key=client.api_key), timeout=10
    )
    own = Client(stack.endpoint, made.secret)
    yield own
    await own.close()


async def hold(policy: policy_pb2_grpc.PolicyServiceAsyncStub, admin: Client, *texts: str) -> None:
    rules = guardrails_pb2.GuardrailRules(
        blocked=[guardrails_pb2.BlockedText(text=text) for text in texts], guards_stream=True
    )
    given = guardrails_pb2.Guardrails(tenant=TENANT, rules=rules)
    request = guardrails_pb2.SetGuardrailsRequest(guardrails=given)
    await policy.SetGuardrails(request, metadata=grpc_client.outgoing(api_key=admin.api_key), timeout=10)


async def test_an_answer_ends_before_what_is_blocked_and_its_slot_is_free_again(
    client: Client, guarded: Client, policy: policy_pb2_grpc.PolicyServiceAsyncStub
) -> None:
    request = prompt("one two three", max_tokens=200)
    free = await client.ask(request)
    middle = len(free.text) // 2
    blocked = free.text[middle : middle + 12].strip()
    at = free.text.casefold().index(blocked.casefold())
    await hold(policy, client, blocked)
    held = await guarded.ask(request)
    assert held.text == free.text[:at]
    assert held.token_ids == free.token_ids[: len(held.token_ids)]
    assert held.terminal is not None
    assert held.terminal.reason == generation_pb2.FINISH_REASON_CONTENT_FILTER
    await client.until_idle()
    assert (await client.ask(request)).text == free.text


async def test_a_harmless_answer_is_the_same_with_guardrails(
    client: Client, guarded: Client, policy: policy_pb2_grpc.PolicyServiceAsyncStub
) -> None:
    await hold(policy, client, "no model says this ☃")
    request = prompt("four five six", max_tokens=64)
    free, held = await client.ask(request), await guarded.ask(request)
    assert (held.text, held.token_ids) == (free.text, free.token_ids)
    assert held.terminal is not None
    assert free.terminal is not None
    assert held.terminal.reason == free.terminal.reason


async def test_a_prompt_is_refused(
    client: Client, guarded: Client, policy: policy_pb2_grpc.PolicyServiceAsyncStub
) -> None:
    await hold(policy, client, "two three")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await guarded.ask(prompt("one TWO three"))
    assert from_rpc(caught.value).reason == "CONTENT_FILTER"
