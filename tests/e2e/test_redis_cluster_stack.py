"""Every process over a Redis Cluster, with two policy processes: one of each is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.client import Client, in_the_end, prompt
from harness.redis_cluster import ClusterServers

from inferflux.cli.stack import Stack, StackOptions

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240), pytest.mark.long]

KEYS = "inferflux:{policy}:revision"


async def test_one_policy_process_and_one_primary_may_be_lost(tmp_path: Path) -> None:
    async with (
        ClusterServers(tmp_path, n_replicas=1) as redis,
        Stack(StackOptions(redis_url=redis.url, policies=2, threads=1)) as stack,
    ):
        client = Client(stack.endpoint, stack.api_key)
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

        lost = await redis.primary_of(KEYS)
        redis.servers[lost].kill()
        await in_the_end(client)
        redis.servers[lost].start()
        await redis.replicates(lost)
        await in_the_end(client)
        await client.close()
