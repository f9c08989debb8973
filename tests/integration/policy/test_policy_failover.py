"""The primary of policy's Redis is lost, and a replica takes its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from harness.policy import PolicyProcess, refusal
from harness.redis_cluster import ClusterServers
from harness.redis_sentinel import SentinelServers
from harness.slot_move import SlotMove

from inferflux.common.contract.errors import (
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    from_rpc,
)
from inferflux.common.redis import store
from inferflux.policy.decide import keys
from inferflux.policy.storage.redis.table import REVISION
from inferflux.policy.storage.usage_store import UsageStore
from inferflux.v1 import generation_pb2, policy_pb2

from .conftest import StartPolicy

Servers = SentinelServers | ClusterServers

# Which of policy's keys is lost with its server.
LOST = REVISION


@pytest.fixture(params=[SentinelServers, ClusterServers])
async def servers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Servers]:
    """What loses a primary and goes on with its replica."""
    made = (
        SentinelServers(tmp_path)
        if request.param is SentinelServers
        else ClusterServers(tmp_path, n_replicas=1)
    )
    async with made as running:
        yield running


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


async def until_refused(policy: PolicyProcess, secret: str) -> Unavailable:
    """The first refusal: policy has its keys in memory for a quarter of a second."""
    async with asyncio.timeout(30):
        while True:
            try:
                await policy.admit(secret)
            except grpc.aio.AioRpcError as error:
                refused = from_rpc(error)
                assert isinstance(refused, Unavailable)
                return refused
            await asyncio.sleep(0.02)


@pytest.mark.long
@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_a_lost_primary_loses_no_key_revokes_none_less_and_settles_nothing_twice(
    servers: Servers, start_policy: StartPolicy, how: str
) -> None:
    admin = keys.generate()
    policy = await start_policy(servers.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=admin)
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

    primary = servers.servers[await servers.primary_of(LOST)]
    primary.kill() if how == "killed" else primary.pause()
    await until_refused(policy, kept.secret)
    await admitted_again(policy, kept.secret)
    if how == "stopped":
        primary.resume()

    for _ in range(5):
        assert isinstance(from_rpc(await refusal(policy.admit(revoked.secret))), Unauthenticated)
        await policy.stub.Settle(settled, timeout=10)
        assert (await policy.admit(kept.secret)).tenant == "acme"
    redis = store.connect(servers.url)
    usage = await UsageStore(redis, timeout_s=5).usage("acme")
    await redis.aclose()
    assert (usage["requests"], usage["completion_tokens"]) == (1, 5)
    await policy.wait_ready()


async def test_a_revocation_that_no_replica_has_is_told(servers: Servers, start_policy: StartPolicy) -> None:
    admin = keys.generate()
    policy = await start_policy(servers.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=admin)
    made = await policy.create_key(admin)
    replica = servers.replica_of(await servers.primary_of(LOST))
    servers.servers[replica].pause()
    error = from_rpc(await refusal(policy.revoke(admin, made.api_key.key_id)))
    assert isinstance(error, Unavailable)
    assert error.reason == "NOT_REPLICATED"
    assert isinstance(from_rpc(await refusal(policy.admit(made.secret))), Unauthenticated)
    servers.servers[replica].resume()
    await servers.replicates(replica)
    another = await policy.create_key(admin)
    await policy.revoke(admin, another.api_key.key_id)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterServers]:
    async with ClusterServers(tmp_path) as running:
        yield running


@pytest.mark.long
async def test_while_a_slot_moves_a_key_is_revoked_for_good_or_not_at_all(
    cluster: ClusterServers, start_policy: StartPolicy
) -> None:
    admin = keys.generate()
    policy = await start_policy(cluster.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=admin)
    first, second = [await policy.create_key(admin) for _ in range(2)]
    source = await cluster.primary_of(LOST)
    move = SlotMove(cluster, LOST, source=source, target=(source + 1) % 3)
    await move.begin()
    for name in await move.names():
        assert (await policy.admit(first.secret)).tenant == "acme"
        error = from_rpc(await refusal(policy.revoke(admin, first.api_key.key_id)))
        assert isinstance(error, Unavailable)
        assert error.reason == "STORE_UNAVAILABLE"
        await move.move(name)
    await move.end()
    await policy.revoke(admin, first.api_key.key_id)
    assert isinstance(from_rpc(await refusal(policy.admit(first.secret))), Unauthenticated)
    assert (await policy.admit(second.secret)).tenant == "acme"


@pytest.mark.long
async def test_while_a_slot_moves_limits_refuse_or_count_and_never_begin_anew(
    cluster: ClusterServers, start_policy: StartPolicy
) -> None:
    admin = keys.generate()
    policy = await start_policy(cluster.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=admin)
    made = await policy.create_key(admin)
    await policy.limit(admin, f"tenant:{made.api_key.tenant}", requests_per_day=3)
    await policy.admit(made.secret, is_counted=True)
    swept = "inferflux:{limits}:swept"
    source = await cluster.primary_of(swept)
    move = SlotMove(cluster, swept, source=source, target=(source + 1) % 3)
    await move.begin()
    for name in await move.names():
        assert (
            from_rpc(await refusal(policy.admit(made.secret, is_counted=True))).reason == "STORE_UNAVAILABLE"
        )
        await move.move(name)
    await move.end()
    await policy.admit(made.secret, is_counted=True)
    await policy.admit(made.secret, is_counted=True)
    assert isinstance(from_rpc(await refusal(policy.admit(made.secret, is_counted=True))), ResourceExhausted)


@pytest.mark.long
async def test_a_primary_that_is_cut_off_from_the_others_refuses_every_call(
    cluster: ClusterServers, start_policy: StartPolicy
) -> None:
    admin = keys.generate()
    policy = await start_policy(cluster.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=admin)
    made = await policy.create_key(admin)
    alone = await cluster.primary_of(LOST)
    others = [each for index, each in enumerate(cluster.servers) if index != alone]
    for each in others:
        each.pause()
    assert (await until_refused(policy, made.secret)).reason == "STORE_UNAVAILABLE"
    for each in others:
        each.resume()
    await admitted_again(policy, made.secret)
