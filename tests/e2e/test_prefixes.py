"""Cached prefixes through all processes: told in the usage, and shared within a tenant alone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from harness.client import Answer, Client
from harness.keys import key_of

from inferflux.cli.stack import Stack, StackOptions
from inferflux.v1 import generation_pb2, inference_pb2

pytestmark = pytest.mark.e2e

TEXT = "The capital of France is Paris. The capital of Italy is Rome. " * 4


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    """One engine thread: then cells alone do not change what a step of one row gives."""
    async with Stack(StackOptions(threads=1)) as running:
        yield running


async def ask(client: Client, *, max_tokens: int) -> Answer:
    """Greedy; each time more tokens, so that no earlier answer is the answer."""
    params = generation_pb2.GenerationParams(max_tokens=max_tokens, ignore_eos=True)
    params.sampling.temperature = 0.0
    return await client.ask(inference_pb2.GenerateRequest(model="inferflux-demo", text=TEXT, params=params))


def cached(answer: Answer) -> int:
    assert answer.terminal is not None
    return answer.terminal.usage.cached_prompt_tokens


async def test_a_prompt_that_was_computed_is_told_as_cached_to_its_tenant_alone(stack: Stack) -> None:
    own = Client(stack.endpoint, await key_of(stack, "own"))
    other = Client(stack.endpoint, await key_of(stack, "other"))
    try:
        first = await ask(own, max_tokens=8)
        again = await ask(own, max_tokens=9)
        others = await ask(other, max_tokens=10)
    finally:
        await own.close()
        await other.close()
    assert first.terminal is not None
    assert (cached(first), cached(others)) == (0, 0)
    assert cached(again) == first.terminal.usage.prompt_tokens - 1
    assert again.terminal is not None
    assert again.terminal.usage.cached_prompt_tier == generation_pb2.CACHE_TIER_DEVICE
    assert again.token_ids[:8] == first.token_ids
    assert others.token_ids[:9] == again.token_ids
