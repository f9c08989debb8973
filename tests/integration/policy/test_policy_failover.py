"""The primary of policy's Redis is lost, and a replica takes its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from harness.policy import PolicyProcess, refusal

from inferflux.common import store
from inferflux.common.errors import Unauthenticated, Unavailable, from_rpc
from inferflux.common.sentinel_servers import SentinelServers
from inferflux.policy import keys
from inferflux.policy.usage_store import UsageStore
from inferflux.v1 import generation_pb2, policy_pb2

from .conftest import StartPolicy


@pytest.fixture
async def sentinels(tmp_path: Path) -> AsyncIterator[SentinelServers]:
    async with SentinelServers(tmp_path / "redis") as stack:
        yield stack


async def admitted_again(policy: PolicyProcess, secret: str) -> None:
    """Return when a key is admitted; until then it is refused as one that may be tried again."""
    async with asyncio.timeout(60):
        while True:
            try:
                await policy.admit(secret)
            except grpc.aio.AioRpcError as error:
                own = from_rpc(error)
                assert isinstance(own, Unavailable)
                assert own.retry_delay_s
                await asyncio.sleep(own.retry_delay_s / 10)
            else:
                return


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_a_lost_primary_loses_no_key_revokes_none_less_and_settles_nothing_twice(
    sentinels: SentinelServers, start_policy: StartPolicy, how: str
) -> None:
    admin = keys.generate()
    policy = await start_policy(sentinels.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=admin)
    kept, revoked = [await policy.create_key(admin) for _ in range(2)]
    settled = policy_pb2.SettleRequest(
        request_id="r-1",
        attempt_id="a1",
        tenant="acme",
        key_id=kept.api_key.key_id,
        model="demo",
        outcome="stop",
        usage=generation_pb2.Usage(prompt_tokens=10, completion_tokens=5),
    )
    await policy.stub.Settle(settled, timeout=10)
    await policy.revoke(admin, revoked.api_key.key_id)

    primary = sentinels.servers[0]
    primary.kill() if how == "killed" else primary.pause()
    error = await refusal(policy.admit(kept.secret))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    await admitted_again(policy, kept.secret)
    if how == "stopped":
        primary.resume()

    for _ in range(5):
        assert isinstance(from_rpc(await refusal(policy.admit(revoked.secret))), Unauthenticated)
        await policy.stub.Settle(settled, timeout=10)
        assert (await policy.admit(kept.secret)).tenant == "acme"
    redis = store.connect(sentinels.url)
    usage = await UsageStore(redis, timeout_s=5).usage("acme")
    await redis.aclose()
    assert (usage["requests"], usage["completion_tokens"]) == (1, 5)
    await policy.wait_ready()


async def test_a_revocation_that_no_replica_has_is_told(
    sentinels: SentinelServers, start_policy: StartPolicy
) -> None:
    admin = keys.generate()
    policy = await start_policy(sentinels.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=admin)
    made = await policy.create_key(admin)
    sentinels.servers[1].pause()
    error = from_rpc(await refusal(policy.revoke(admin, made.api_key.key_id)))
    assert isinstance(error, Unavailable)
    assert error.reason == "NOT_REPLICATED"
    assert isinstance(from_rpc(await refusal(policy.admit(made.secret))), Unauthenticated)
    sentinels.servers[1].resume()
    await sentinels.replicates()
    another = await policy.create_key(admin)
    await policy.revoke(admin, another.api_key.key_id)
