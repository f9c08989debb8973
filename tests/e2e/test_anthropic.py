"""Anthropic's own client, unmodified, against the whole stack and the demo model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, TextBlock, ToolParam, ToolUseBlock
from harness.client import MODEL

from inferflux.cli.stack import Stack

pytestmark = pytest.mark.e2e

CAPITAL: list[MessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
SUM: list[MessageParam] = [{"role": "user", "content": "What is 12 + 7?"}]
TOOL: ToolParam = {
    "name": "calculator",
    "description": "Computes.",
    "input_schema": {
        "type": "object",
        "properties": {"expression": {"type": "string", "pattern": "^[0-9]{1,3} [+*-] [0-9]{1,3}$"}},
        "required": ["expression"],
        "additionalProperties": False,
    },
}
GREEDY: dict[str, Any] = {"temperature": 0}


@pytest.fixture
async def sdk(stack: Stack) -> AsyncIterator[anthropic.AsyncAnthropic]:
    made = anthropic.AsyncAnthropic(base_url=stack.http_url, api_key=stack.api_key, max_retries=0, timeout=60)
    async with made as client:
        yield client


async def test_anthropics_client_reads_a_message_and_its_stream_alike(sdk: anthropic.AsyncAnthropic) -> None:
    whole = await sdk.messages.create(model=MODEL, max_tokens=40, messages=CAPITAL, extra_body=GREEDY)
    block = whole.content[0]
    assert isinstance(block, TextBlock)
    assert "Paris" in block.text
    assert whole.stop_reason == "end_turn"
    async with sdk.messages.stream(model=MODEL, max_tokens=40, messages=CAPITAL, extra_body=GREEDY) as stream:
        said = "".join([text async for text in stream.text_stream])
        final = await stream.get_final_message()
    assert said == block.text
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.stop_reason == "end_turn"


async def test_anthropics_client_calls_a_tool_and_goes_on_with_its_result(
    sdk: anthropic.AsyncAnthropic,
) -> None:
    called = await sdk.messages.create(
        model=MODEL,
        max_tokens=80,
        messages=SUM,
        tools=[TOOL],
        tool_choice={"type": "any"},
        extra_body=GREEDY,
    )
    assert called.stop_reason == "tool_use"
    call = called.content[-1]
    assert isinstance(call, ToolUseBlock)
    assert set(call.input) == {"expression"}
    async with sdk.messages.stream(
        model=MODEL,
        max_tokens=80,
        messages=SUM,
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "calculator"},
        extra_body=GREEDY,
    ) as stream:
        streamed = (await stream.get_final_message()).content[-1]
    assert isinstance(streamed, ToolUseBlock)
    assert streamed.input == call.input
    result: list[MessageParam] = [
        *SUM,
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "19"}]},
    ]
    told = await sdk.messages.create(model=MODEL, max_tokens=40, messages=result, tools=[TOOL])
    assert told.stop_reason in ("end_turn", "tool_use")


async def test_a_stop_sequence_is_told(sdk: anthropic.AsyncAnthropic) -> None:
    answer = await sdk.messages.create(
        model=MODEL, max_tokens=40, messages=CAPITAL, stop_sequences=["xyz", " is"], extra_body=GREEDY
    )
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", " is")


async def test_anthropics_client_gets_an_answer_of_its_schema(sdk: anthropic.AsyncAnthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    answer = await sdk.messages.create(
        model=MODEL,
        max_tokens=40,
        messages=CAPITAL,
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    block = answer.content[0]
    assert isinstance(block, TextBlock)
    assert block.text.replace(" ", "") in ('{"city":"Paris"}', '{"city":"Rome"}')


async def test_the_line_that_says_who_pays_does_not_spoil_the_prefix_cache(
    sdk: anthropic.AsyncAnthropic,
) -> None:
    usages = []
    for number in (1, 2):
        answer = await sdk.messages.create(
            model=MODEL,
            max_tokens=2,
            system=[
                {
                    "type": "text",
                    "text": f"x-anthropic-billing-header: cc_version=2.1; cch={number}f{number};",
                },
                {
                    "type": "text",
                    "text": "You answer in short sentences about the capitals of countries. " * 8,
                    "cache_control": {"type": "ephemeral"},
                },
            ],
            messages=CAPITAL,
        )
        usages.append(answer.usage)
    assert usages[1].cache_read_input_tokens
    assert usages[1].cache_read_input_tokens > (usages[0].cache_read_input_tokens or 0)
    assert sum((usages[1].input_tokens, usages[1].cache_read_input_tokens)) == usages[0].input_tokens + (
        usages[0].cache_read_input_tokens or 0
    )


async def test_anthropics_client_counts_tokens_lists_models_and_knows_our_errors(
    sdk: anthropic.AsyncAnthropic, stack: Stack
) -> None:
    counted = await sdk.messages.count_tokens(model=MODEL, messages=CAPITAL)
    answer = await sdk.messages.create(model=MODEL, max_tokens=1, messages=CAPITAL)
    assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
    assert MODEL in [model.id async for model in sdk.models.list()]
    assert (await sdk.models.retrieve(MODEL)).display_name == MODEL
    named = await sdk.messages.create(model="any-name", max_tokens=1, messages=CAPITAL)
    assert named.content, "a stack of one model answers under any name"
    with pytest.raises(anthropic.BadRequestError) as caught:
        await sdk.messages.create(model=MODEL, max_tokens=1, messages=CAPITAL, extra_body={"top_k": "x"})
    assert "top_k" in str(caught.value)
    async with anthropic.AsyncAnthropic(base_url=stack.http_url, api_key="ifx_no", max_retries=0) as stranger:
        with pytest.raises(anthropic.AuthenticationError):
            await stranger.models.list()
