"""Every process, real servers, and a request that kills every engine it reaches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from harness.client import Answer, Client, countdown, prompt, undisturbed

from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.errors import from_rpc

pytestmark = pytest.mark.e2e

POISONED = Path(__file__).resolve().parents[1] / "harness" / "poisoned"


@pytest.fixture(params=[1, 2])
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    """One worker or two, whose engines are killed by requests that are called poison."""
    env = {"worker": {"PYTHONPATH": str(POISONED)}}
    options = StackOptions(workers=request.param, slots=8, threads=1, service_env=env)
    async with Stack(options) as running:
        yield running


async def test_a_request_that_kills_every_engine_fails_alone_among_twenty_others(
    stack: Stack, client: Client
) -> None:
    requests = [countdown(start, 1) for start in range(30, 20, -1)] * 2
    expected = await undisturbed(client, requests)
    answers = [Answer() for _ in requests]
    others = [
        asyncio.create_task(client.ask(request, request_id=f"other-{i}", answer=answer))
        for i, (request, answer) in enumerate(zip(requests, answers, strict=True))
    ]
    async with asyncio.timeout(30):
        await answers[0].first_token.wait()
    poison = prompt("Poison", max_tokens=64)
    poison.priority = 9  # it goes first, and runs beside others
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.ask(poison, request_id="poison")
    assert from_rpc(caught.value).reason == "POISON_REQUEST"
    async with asyncio.timeout(60):
        await asyncio.gather(*others)
    assert [(a.token_ids, a.text) for a in answers] == [(e.token_ids, e.text) for e in expected]
    assert any(len(a.epochs) > 1 for a in answers), "none of the others was on a dying engine"
    await client.until_idle()
