"""Every process over Redis behind sentinels: its primary is lost, and all of it ends and comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.client import Client, in_the_end, prompt

from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.redis import store

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240), pytest.mark.long]

KEY = "inferflux:{t}:x"


@contextlib.asynccontextmanager
async def running(state_dir: Path) -> AsyncIterator[tuple[Stack, Client]]:
    options = StackOptions(state_dir=state_dir, redis_servers=3, has_sentinels=True, threads=1)
    async with Stack(options) as stack:
        client = Client(stack.endpoint, stack.api_key)
        yield stack, client
        await client.close()


async def primary(stack: Stack) -> str:
    """Which server the sentinels have clients call."""
    redis = store.connect(stack.redis_url)
    async with redis.client() as one:
        await one.ping()
        assert one.connection is not None
        port = one.connection.port
    await redis.aclose()
    specs = (process.spec for process in stack.processes.values() if process.spec.kind == "valkey")
    return next(spec.name for spec in specs if spec.port == port)


async def test_a_replica_takes_over_and_is_the_primary_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as (stack, client):
        assert {name for name in stack.processes if name.startswith(("valkey", "sentinel"))} == {
            *(f"valkey-{index}" for index in range(3)),
            *(f"sentinel-{index}" for index in range(3)),
        }
        await client.until_status(lambda s: all(each.is_ready for each in s.services))
        lost = await primary(stack)
        assert lost == "valkey-0"
        await stack.kill(lost)
        await in_the_end(client)
        taker = await primary(stack)
        assert taker != lost
        await stack.restart(lost)
        redis = store.connect(stack.redis_url)
        await redis.set(KEY, "written after the failover")
        # All that there are: the server that was lost follows as well.
        async with asyncio.timeout(60):
            while await redis.wait(2, 1000) < 2:
                pass
        await redis.aclose()
    async with running(tmp_path) as (stack, client):
        assert await primary(stack) == taker
        redis = store.connect(stack.redis_url)
        assert await redis.get(KEY) == b"written after the failover"
        await redis.aclose()
        await client.ask(prompt("Once", max_tokens=2))
