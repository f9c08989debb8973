"""Every process over a Redis Cluster, with two policy processes: one of each is lost."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.client import Client, in_the_end, prompt
from redis.crc import key_slot

from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.redis import store
from inferflux.common.redis.redis_cluster.slots import read_map

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240), pytest.mark.long]

KEYS = b"inferflux:{keys}:index"


@contextlib.asynccontextmanager
async def running(state_dir: Path) -> AsyncIterator[tuple[Stack, Client]]:
    options = StackOptions(state_dir=state_dir, redis_servers=6, policies=2, threads=1)
    async with Stack(options) as stack:
        client = Client(stack.endpoint, stack.api_key)
        yield stack, client
        await client.close()


async def primary_of_keys(stack: Stack) -> str:
    """Which valkey-server has the API keys."""
    redis = store.connect(stack.redis_url.replace("redis-cluster", "redis").partition(",")[0] + "/0")
    slots = await redis.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
    nodes = await redis.execute_command("CLUSTER", "NODES")  # type: ignore[no-untyped-call]
    await redis.aclose()
    found = read_map(slots, nodes, asked=("127.0.0.1", 0)).range_of(key_slot(KEYS))
    assert found is not None
    servers = (process.spec for process in stack.processes.values() if process.spec.kind == "valkey")
    return next(spec.name for spec in servers if spec.port == found.primary[1])


async def test_one_policy_process_and_one_primary_may_be_lost(tmp_path: Path) -> None:
    async with running(tmp_path) as (stack, client):
        await client.until_status(lambda s: all(each.is_ready for each in s.services))
        status = await client.status()
        names = [each.name for each in status.services]
        assert names == ["gateway", "policy", "policy", "scheduler", "nats", "redis"]

        await stack.kill("policy-0")
        await in_the_end(client)
        for _ in range(4):
            await client.ask(prompt("Once", max_tokens=2))
        status = await client.status()
        assert sorted(each.is_ready for each in status.services if each.name == "policy") == [False, True]
        assert next(each for each in status.services if each.name == "redis").is_ready
        await stack.restart("policy-0")

        lost = await primary_of_keys(stack)
        await stack.kill(lost)
        await in_the_end(client)
        await stack.restart(lost)
        await in_the_end(client)


async def test_a_cluster_that_ends_is_there_again_on_other_ports(tmp_path: Path) -> None:
    async with running(tmp_path) as (stack, client):
        await client.ask(prompt("Once", max_tokens=2))
        before = stack.redis_url
        redis = store.connect(before)
        for key in "abc":
            await redis.set(key, key)
        await redis.aclose()
    async with running(tmp_path) as (stack, client):
        assert stack.redis_url != before
        redis = store.connect(stack.redis_url)
        assert [await redis.get(key) for key in "abc"] == [b"a", b"b", b"c"]
        await redis.aclose()
        await client.ask(prompt("Once", max_tokens=2))
