"""Two workers that cache what they computed: a conversation returns to the one that has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from harness.client import Answer, Client, prompt
from harness.policy import until
from redis.asyncio import Redis

from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.redis import store

pytestmark = pytest.mark.e2e

SAID = "The lighthouse keeper wrote down every ship that passed, " * 8


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    """Schedulers wait for hints as long as a busy machine may need."""
    env = {"scheduler": {"INFERFLUX_SCHEDULER_PREFIX_LOOKUP_LIMIT_S": "1"}}
    async with Stack(StackOptions(workers=2, slots=8, threads=1, service_env=env)) as running:
        yield running


async def blocks_of(redis: Redis, worker_id: str) -> int:
    """Blocks that the index has of a worker."""
    pattern = f"inferflux:{{prefixes}}:blocks:{worker_id}:*"
    return sum([await redis.hlen(key) - 1 async for key in redis.scan_iter(pattern)])


async def test_the_second_turn_of_a_conversation_goes_to_the_worker_that_holds_the_first(
    stack: Stack, client: Client
) -> None:
    """An idle fleet would give it to the other one."""
    redis = store.connect(stack.redis_url)
    busy = Answer()
    other = asyncio.create_task(client.ask(prompt("Story", max_tokens=1900), request_id="other", answer=busy))
    async with asyncio.timeout(30):
        await busy.first_token.wait()
    first = await client.ask(prompt(SAID, max_tokens=8))
    (holder,) = first.worker_ids
    assert holder not in busy.worker_ids
    await client.cancel("other")
    await asyncio.wait([other])

    async def is_indexed() -> bool:
        return await blocks_of(redis, holder) > 0

    await until(is_indexed)
    await client.until_idle()
    second = await client.ask(prompt(f"{SAID}{first.text} and then", max_tokens=8))
    assert second.worker_ids == [holder]
    assert second.terminal is not None
    usage = second.terminal.usage
    assert usage.cached_prompt_tokens > usage.prompt_tokens / 2
    await redis.aclose()
