"""Ollama's own client, unmodified, against the whole stack and the demo model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import ollama
import pytest
from harness.client import MODEL

from inferflux.cli.stack import Stack

pytestmark = pytest.mark.e2e

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0, "num_predict": 60}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture
async def sdk(stack: Stack) -> AsyncIterator[ollama.AsyncClient]:
    headers = {"Authorization": f"Bearer {stack.api_key}"}
    async with ollama.AsyncClient(host=stack.http_url, headers=headers) as client:
        yield client


async def test_ollamas_client_reads_an_answer_and_its_lines_alike(sdk: ollama.AsyncClient) -> None:
    whole = await sdk.chat(model=f"{MODEL}:latest", messages=CAPITAL, options=GREEDY)
    assert "Paris" in (whole.message.content or "")
    assert whole.done_reason == "stop"
    assert whole.eval_count
    lines = [
        line async for line in await sdk.chat(model=MODEL, messages=CAPITAL, options=GREEDY, stream=True)
    ]
    assert "".join(line.message.content or "" for line in lines) == whole.message.content
    assert lines[-1].eval_count == whole.eval_count
    generated = await sdk.generate(model=MODEL, prompt=CAPITAL[0]["content"], options=GREEDY)
    assert generated.response == whole.message.content


async def test_ollamas_client_gets_an_answer_of_its_schema(sdk: ollama.AsyncClient) -> None:
    answer = await sdk.chat(model=MODEL, messages=CAPITAL, format=CITY, options=GREEDY)
    assert json.loads(answer.message.content or "")["city"] in ("Paris", "Rome")


async def test_ollamas_client_goes_on_with_the_result_of_a_call(sdk: ollama.AsyncClient) -> None:
    def calculator(expression: str) -> str:
        """Computes.

        Args:
            expression: a sum, such as 1 + 2.
        """
        return expression

    call = {"function": {"name": "calculator", "arguments": {"expression": "12 + 7"}}}
    said: list[dict[str, Any]] = [
        {"role": "user", "content": "What is 12 + 7?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "19", "tool_name": "calculator"},
    ]
    answer = await sdk.chat(model=MODEL, messages=said, tools=[calculator], options=GREEDY)
    assert "19" in (answer.message.content or "")


async def test_ollamas_client_lists_models_and_knows_our_errors(
    sdk: ollama.AsyncClient, stack: Stack
) -> None:
    assert f"{MODEL}:latest" in [model.model for model in (await sdk.list()).models]
    assert "completion" in ((await sdk.show(MODEL)).capabilities or [])
    with pytest.raises(ollama.ResponseError) as caught:
        await sdk.show("nothing")
    assert caught.value.status_code == 404
    async with ollama.AsyncClient(host=stack.http_url) as stranger:
        with pytest.raises(ollama.ResponseError) as caught:
            await stranger.chat(model=MODEL, messages=CAPITAL)
    assert caught.value.status_code == 401
