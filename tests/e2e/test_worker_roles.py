"""A stack of prefill and decode workers serves like any other, and goes on when all of one role are gone."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator

import pytest
from harness.client import Answer, Client

from inferflux.cli.stack import Stack, StackOptions
from inferflux.v1 import generation_pb2, inference_pb2

pytestmark = pytest.mark.e2e

WAIT_S = 60.0
TEXT = "The capital of France is Paris. The capital of Italy is Rome. " * 4
OK = {"status": "ok", "role": "gateway", "reason": ""}
SMALL = {"status": "degraded", "role": "gateway", "reason": "decode pool not ready"}


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with Stack(StackOptions(workers=0, prefill=1, decode=1, slots=4, threads=1)) as running:
        yield running


async def ask(client: Client) -> Answer:
    params = generation_pb2.GenerationParams(max_tokens=16, ignore_eos=True)
    params.sampling.temperature = 0.0
    return await client.ask(inference_pb2.GenerateRequest(model="inferflux-demo", text=TEXT, params=params))


async def until_ready_as(stack: Stack, wanted: dict[str, str]) -> None:
    """Return once /readyz of the gateway answers with 200, and with this."""

    def told() -> dict[str, str]:
        url = f"http://{stack.metrics['gateway']}/readyz"
        with urllib.request.urlopen(url, timeout=5) as reply:
            body = json.load(reply)
        return {name: body[name] for name in wanted}

    async with asyncio.timeout(WAIT_S):
        while await asyncio.to_thread(told) != wanted:
            await asyncio.sleep(0.05)


async def test_requests_are_served_while_a_pool_is_empty_and_health_says_so(
    stack: Stack, client: Client
) -> None:
    await until_ready_as(stack, OK)
    first = await ask(client)
    assert len(first.token_ids) == 16
    await stack.kill("worker-decode-0")
    await until_ready_as(stack, SMALL)
    assert (await ask(client)).token_ids == first.token_ids
    await stack.restart("worker-decode-0")
    await until_ready_as(stack, OK)
    await stack.kill("worker-prefill-0")
    assert (await ask(client)).token_ids == first.token_ids
