"""What tests compare word for word is what the demo model is sure of."""

from __future__ import annotations

import asyncio

import pytest
from chaos.caller import asked
from chaos.workload import LONG_PROMPTS, PROMPTS, Order, countdown_text
from harness.client import Client
from harness.sure import check_sure

pytestmark = pytest.mark.e2e

COUNTDOWNS = sorted({*PROMPTS, *((start, end) for start in range(21, 31) for end in (1, 2))})


async def test_the_demo_model_is_sure_of_every_token_of_a_countdown(client: Client) -> None:
    async with asyncio.TaskGroup() as group:
        for start, end in COUNTDOWNS:
            group.create_task(check_countdown(client, start, end))


async def test_it_is_as_sure_after_other_countdowns(client: Client) -> None:
    async with asyncio.TaskGroup() as group:
        for turns, start, end in LONG_PROMPTS:
            group.create_task(check_countdown(client, start, end, turns))


async def check_countdown(client: Client, start: int, end: int, turns: int = 0) -> None:
    request = asked(Order("", start, end, 0, 0, turns=turns))
    request.params.sampling.logprobs = 2
    chunks = [response.chunk async for response in client.inference.Chat(request, metadata=client.metadata())]
    check_sure(chunks)
    assert "".join(chunk.text for chunk in chunks) == countdown_text(start, end)
