"""What tests compare word for word is what the demo model is sure of."""

from __future__ import annotations

import asyncio

import pytest
from chaos.workload import PROMPTS, countdown_text
from harness.client import Client, countdown

pytestmark = pytest.mark.e2e

COUNTDOWNS = sorted({*PROMPTS, *((start, end) for start in range(21, 31) for end in (1, 2))})
# Of two log-probabilities. What else is in the batch changes logits by some hundredths.
SURE = 1.0


async def test_the_demo_model_is_sure_of_every_token_of_a_countdown(client: Client) -> None:
    async with asyncio.TaskGroup() as group:
        for start, end in COUNTDOWNS:
            group.create_task(is_sure(client, start, end))


async def is_sure(client: Client, start: int, end: int) -> None:
    request = countdown(start, end)
    request.params.sampling.logprobs = 2
    text = ""
    async for response in client.inference.Chat(request, metadata=client.metadata()):
        text += response.chunk.text
        for token in response.chunk.logprobs:
            first, second = token.top
            assert first.logprob - second.logprob > SURE, (start, end, text, first.text, second.text)
    assert text == countdown_text(start, end)


@pytest.mark.parametrize("question", ["What is 12 + 7?", "12 + 7", "How much is 12 + 7?"])
async def test_the_demo_model_knows_the_sum_that_the_pages_ask_for(client: Client, question: str) -> None:
    request = countdown(1)
    request.messages[0].content = question
    assert (await client.ask(request)).text == "12 + 7 = 19"
