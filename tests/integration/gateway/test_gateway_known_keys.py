"""Keys that a gateway lets pass without a question for a while, before a policy process of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import grpc.aio
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from harness.gateway import WAIT_S, GatewayProcess, StartGateway, until
from harness.policy import PolicyProcess, bearer

from inferflux.v1 import inference_pb2, policy_pb2, policy_pb2_grpc

ADMITTED = 'inferflux_policy_admissions_total{outcome="admitted"}'


@pytest.fixture(scope="module")
async def own_policy(
    tmp_path_factory: pytest.TempPathFactory, valkey_url: str
) -> AsyncIterator[PolicyProcess]:
    async with PolicyProcess(tmp_path_factory.mktemp("policy"), valkey_url).running() as process:
        yield process


@pytest.fixture
async def front(
    start_gateway: StartGateway, nats_url: str, own_policy: PolicyProcess, policy: PolicyProcess
) -> GatewayProcess:
    """A gateway that asks `own_policy`, which reads what `policy` writes."""
    return await start_gateway(nats_url, INFERFLUX_POLICY_ADDRESS=f"127.0.0.1:{own_policy.port}", knows="")


async def outcome(gateway: GatewayProcess, key: str) -> str:
    """How a call ends whose body is refused once its key was admitted."""
    request = inference_pb2.GenerateRequest(model="demo", text="hello", priority=999)
    try:
        await gateway.inference.Generate(request, metadata=bearer(key), timeout=WAIT_S).read()
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


PASSED, REVOKED = "INVALID_ARGUMENT", "UNAUTHENTICATED"


async def test_calls_of_a_key_that_come_soon_after_one_another_ask_policy_rarely(
    front: GatewayProcess, own_policy: PolicyProcess, policy: PolicyProcess, admin_key: str
) -> None:
    key = (await policy.create_key(admin_key, tenant="often")).secret
    before, began_s = await own_policy.metric(ADMITTED), time.monotonic()
    for _ in range(40):
        assert await outcome(front, key) == PASSED
    took_s = time.monotonic() - began_s
    asked = await own_policy.metric(ADMITTED) - before
    # Policy reads keys again each quarter of a second, and is asked again then.
    assert 1 <= asked <= 2 + took_s / 0.25
    assert asked < 40


async def test_a_key_that_was_revoked_elsewhere_is_refused_within_a_second(
    front: GatewayProcess, policy: PolicyProcess, admin_key: str
) -> None:
    made = await policy.create_key(admin_key, tenant="elsewhere")
    assert await outcome(front, made.secret) == PASSED
    await policy.revoke(admin_key, made.api_key.key_id)
    revoked_s = began_s = time.monotonic()
    while await outcome(front, made.secret) == PASSED:
        assert began_s - revoked_s < 1.0
        began_s = time.monotonic()
    assert await outcome(front, made.secret) == REVOKED


async def test_a_change_by_the_gateway_itself_holds_for_its_next_call(
    front: GatewayProcess, policy: PolicyProcess, admin_key: str
) -> None:
    made = await policy.create_key(admin_key, tenant="here")
    stub = policy_pb2_grpc.PolicyServiceStub(front.channel)
    for _ in range(3):
        assert await outcome(front, made.secret) == PASSED
    request = policy_pb2.RevokeApiKeyRequest(key_id=made.api_key.key_id)
    await stub.RevokeApiKey(request, metadata=bearer(admin_key), timeout=WAIT_S)
    assert await outcome(front, made.secret) == REVOKED


async def test_each_call_counts_against_a_limit(
    front: GatewayProcess, policy: PolicyProcess, admin_key: str
) -> None:
    key = (await policy.create_key(admin_key, tenant="counted")).secret
    await policy.limit(admin_key, "tenant:counted", requests_per_minute=5)

    async def is_limited() -> bool:
        return bool((await policy.used(admin_key, "tenant:counted")).get("requests_per_minute"))

    async def is_counted() -> bool:
        await outcome(front, key)
        return await is_limited()

    await until(is_counted)
    ends = await asyncio.gather(*(outcome(front, key) for _ in range(12)))
    assert ends.count(PASSED) == 4
    assert ends.count("RESOURCE_EXHAUSTED") == 8


async def test_a_key_that_expires_is_refused_from_then_on(
    front: GatewayProcess, policy: PolicyProcess, admin_key: str
) -> None:
    expires_at, expires_ms = Timestamp(), int((time.time() + 0.5) * 1000)
    expires_at.FromMilliseconds(expires_ms)
    made = await policy.create_key(admin_key, tenant="expires", expires_at=expires_at)
    while True:
        sent_ms = time.time() * 1000
        ended = await outcome(front, made.secret)
        if sent_ms >= expires_ms:
            assert ended == REVOKED
            break
        assert ended in (PASSED, REVOKED)
