"""Every process over Redis behind sentinels: its primary is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness.client import Client, in_the_end
from harness.redis_sentinel import SentinelServers

from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.redis import store

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240), pytest.mark.long]

KEY = "inferflux:{t}:x"


async def test_a_replica_takes_over_from_a_primary_that_is_lost(tmp_path: Path) -> None:
    async with (
        SentinelServers(tmp_path) as redis,
        Stack(StackOptions(redis_url=redis.url, threads=1)) as stack,
    ):
        client = Client(stack.endpoint, stack.api_key)
        await client.until_status(lambda s: all(each.is_ready for each in s.services))
        assert await redis.primary_of(KEY) == 0
        redis.servers[0].kill()
        await in_the_end(client)
        assert await redis.primary_of(KEY) == 1
        redis.servers[0].start()
        connection = store.connect(stack.redis_url)
        await connection.set(KEY, "written after the failover")
        # The server that was lost follows.
        async with asyncio.timeout(60):
            while await connection.wait(1, 1000) < 1:
                pass
        await connection.aclose()
        await in_the_end(client)
        await client.close()
