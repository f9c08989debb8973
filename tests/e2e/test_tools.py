"""Tools through every process, with OpenAI's own client and over gRPC.

The demo model is small: what it calls without being made to is not judged here, only how calls come.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from harness.client import MODEL, Client
from harness.http_client import openai_client
from harness.inferctl import run
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall

from inferflux.cli.stack import Stack
from inferflux.v1 import generation_pb2, inference_pb2

pytestmark = pytest.mark.e2e

EXPRESSION = {
    "type": "object",
    "properties": {"expression": {"type": "string", "pattern": "^[0-9]{1,3} [+*-] [0-9]{1,3}$"}},
    "required": ["expression"],
    "additionalProperties": False,
}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {"name": "calculator", "description": "Computes.", "parameters": EXPRESSION},
    },
    {
        "type": "function",
        "function": {"name": "weather", "description": "The weather of a city.", "parameters": CITY},
    },
]
# No mask holds an answer to its `not`.
STRICT = {"name": "f", "parameters": {"type": "object", "not": {"required": ["a", "b"]}}, "strict": True}
ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is 12 + 7?"}]


@pytest.fixture
async def sdk(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai_client(int(stack.http_url.rpartition(":")[2]), stack.api_key) as client:
        yield client


def check_call(name: str, arguments: str) -> None:
    """The call is one of the tools', with arguments of its schema."""
    given = json.loads(arguments)
    if name == "calculator":
        assert list(given) == ["expression"]
        assert len(given["expression"].split()) == 3
    else:
        assert name == "weather"
        assert given in ({"city": "Paris"}, {"city": "Rome"})


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_required_call_is_of_a_tools_schema(sdk: openai.AsyncOpenAI, seed: int) -> None:
    answer = await sdk.chat.completions.create(
        model=MODEL, messages=ASKED, tools=TOOLS, tool_choice="required", seed=seed, temperature=1.5
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls
    for call in choice.message.tool_calls:
        assert call.type == "function"
        assert call.id.startswith("call_")
        check_call(call.function.name, call.function.arguments)


async def test_a_named_call_is_of_that_tool_and_the_only_one(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(
        model=MODEL,
        messages=ASKED,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "weather"}},
        parallel_tool_calls=False,
        temperature=0,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert len(calls) == 1
    assert calls[0].type == "function"
    assert calls[0].function.name == "weather"
    check_call("weather", calls[0].function.arguments)


async def test_a_streamed_call_is_the_whole_ones(sdk: openai.AsyncOpenAI) -> None:
    options: dict[str, Any] = {
        "model": MODEL,
        "messages": ASKED,
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
    }
    whole = await sdk.chat.completions.create(**options)
    stream = await sdk.chat.completions.create(stream=True, **options)
    names: list[str] = []
    fragments: list[str] = []
    reasons: list[str] = []
    async for chunk in stream:
        (choice,) = chunk.choices
        assert not choice.delta.content
        for call in choice.delta.tool_calls or ():
            assert call.index == 0
            assert call.function is not None
            if call.id:
                assert not fragments
                names.append(call.function.name or "")
            fragments.append(call.function.arguments or "")
        if choice.finish_reason:
            reasons.append(choice.finish_reason)
    assert reasons == ["tool_calls"]
    calls = whole.choices[0].message.tool_calls
    assert calls is not None
    (expected,) = calls
    assert expected.type == "function"
    assert names == [expected.function.name]
    assert "".join(fragments) == expected.function.arguments
    assert len([part for part in fragments if part]) > 1


async def test_a_conversation_goes_on_with_the_result_of_a_call(sdk: openai.AsyncOpenAI) -> None:
    first = await sdk.chat.completions.create(
        model=MODEL, messages=ASKED, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=1
    )
    message = first.choices[0].message
    assert message.tool_calls
    call_id = message.tool_calls[0].id
    history: list[Any] = [*ASKED, message, {"role": "tool", "tool_call_id": call_id, "content": "19"}]
    second = await sdk.chat.completions.create(
        model=MODEL, messages=history, tools=TOOLS, max_tokens=30, temperature=0
    )
    assert second.choices[0].finish_reason in ("stop", "length", "tool_calls")
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


WORD: Any = {"type": "grammar", "grammar": {"syntax": "regex", "definition": '[a-z"]{1,9}\n'}}
WRITE: Any = {"type": "custom", "custom": {"name": "write", "format": WORD}}


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_a_custom_tool_is_called_with_a_text_and_only_allowed_tools_are(
    sdk: openai.AsyncOpenAI, mode: str
) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": ASKED, "tools": [*TOOLS, WRITE], "temperature": 0}
    allowed = {"mode": mode, "tools": [{"type": "custom", "custom": {"name": "write"}}]}
    options |= {"max_tokens": 60, "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}}
    answer = (await sdk.chat.completions.create(**options)).choices[0].message
    if mode == "required":
        assert answer.tool_calls
    for call in answer.tool_calls or ():
        assert call.type == "custom"
        assert re.fullmatch('[a-z"]{1,9}\n', call.custom.input)
    tools: Any = [{"type": "custom", "name": "write", "format": {"type": "grammar", **WORD["grammar"]}}]
    response = await sdk.responses.create(
        model=MODEL, input="Write.", tools=tools, tool_choice="required", temperature=0
    )
    assert {item.type for item in response.output} == {"custom_tool_call"}


async def test_without_a_tool_in_sight_the_answer_is_as_without_tools(sdk: openai.AsyncOpenAI) -> None:
    plain = await sdk.chat.completions.create(model=MODEL, messages=ASKED, temperature=0)
    none = await sdk.chat.completions.create(
        model=MODEL, messages=ASKED, temperature=0, tools=TOOLS, tool_choice="none"
    )
    assert none.choices[0].message.content == plain.choices[0].message.content
    assert none.choices[0].message.tool_calls is None


async def test_a_call_that_is_cut_says_length(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(
        model=MODEL,
        messages=ASKED,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "calculator"}},
        max_tokens=6,
    )
    assert answer.choices[0].finish_reason == "length"


async def test_a_response_calls_and_tells_of_it_in_events(sdk: openai.AsyncOpenAI) -> None:
    tools: list[FunctionToolParam] = [
        {
            "type": "function",
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": dict(CITY),
            "strict": True,
        }
    ]
    options: dict[str, Any] = {"model": MODEL, "input": "How is it?", "tools": tools, "temperature": 0}
    whole = await sdk.responses.create(tool_choice="required", parallel_tool_calls=False, **options)
    (item,) = whole.output
    assert isinstance(item, ResponseFunctionToolCall)
    check_call(item.name, item.arguments)
    async with sdk.responses.stream(tool_choice="required", parallel_tool_calls=False, **options) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    (streamed,) = final.output
    assert isinstance(streamed, ResponseFunctionToolCall)
    assert (streamed.name, streamed.arguments) == (item.name, item.arguments)
    assert "response.function_call_arguments.delta" in kinds
    assert kinds[-1] == "response.completed"
    items: list[Any] = [
        {"role": "user", "content": "How is it?"},
        item,
        {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"},
    ]
    after = await sdk.responses.create(**(options | {"input": items, "max_output_tokens": 20}))
    assert after.status in ("completed", "incomplete")


async def test_calls_come_over_grpc_as_deltas_beside_the_text(stack: Stack) -> None:
    request = inference_pb2.ChatRequest(
        model=MODEL,
        messages=[inference_pb2.ChatMessage(role="user", content="What is 12 + 7?")],
        params=generation_pb2.GenerationParams(sampling=generation_pb2.SamplingParams(temperature=0)),
        tools=[inference_pb2.Tool(name="calculator", parameters=json.dumps(EXPRESSION))],
        tool_choice=inference_pb2.ToolChoice(name="calculator"),
        parallel_tool_calls=False,
    )
    client = Client(stack.endpoint, stack.api_key)
    try:
        call = client.inference.Chat(request, metadata=client.metadata())
        responses = [response async for response in call]
    finally:
        await client.close()
    text = "".join(response.chunk.text for response in responses)
    parts = [call for response in responses for call in response.delta.tool_calls]
    assert text.startswith('<tool_call>\n{"name": "calculator", "arguments": {')
    assert [part.name for part in parts if part.id] == ["calculator"]
    check_call("calculator", "".join(part.arguments for part in parts))


async def test_with_tools_and_a_format_an_answer_is_calls_or_of_that_format(sdk: openai.AsyncOpenAI) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"n": {"type": "integer", "maximum": 9}},
        "required": ["n"],
    }
    for seed in range(3):
        answer = await sdk.chat.completions.create(
            model=MODEL,
            messages=ASKED,
            tools=TOOLS,
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
            seed=seed,
            max_tokens=200,
        )
        message = answer.choices[0].message
        assert answer.choices[0].finish_reason in ("stop", "tool_calls", "length")
        if answer.choices[0].finish_reason == "stop":
            assert json.loads(message.content or "")["n"] <= 9
        else:
            assert message.tool_calls or not message.content or message.content.lstrip().startswith("{")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "a\nb"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": STRICT}]},
            "tools[0].function.parameters",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "stop": ["x"]}, "stop"),
    ],
)
async def test_tools_that_cannot_be_used_are_refused_by_name(
    sdk: openai.AsyncOpenAI, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.chat.completions.create(model=MODEL, messages=ASKED, **fields)
    assert refused.value.param == param


async def test_inferctl_takes_tools_from_a_file_and_says_what_is_wrong_with_one(
    stack: Stack, tmp_path: Path
) -> None:
    env = {
        "INFERFLUX_ENDPOINT": stack.endpoint,
        "INFERFLUX_API_KEY": stack.api_key,
        "INFERFLUX_STATE_DIR": str(tmp_path),
    }
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(TOOLS))
    asked = (
        "chat",
        "--tools",
        str(path),
        "--temperature",
        "0",
        "--max-tokens",
        "60",
        "--json",
        "What is 12 + 7?",
    )
    result = await run(*asked, env=env)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert "<tool_call>" not in answer["text"]
    for call in answer.get("tool_calls", []):
        assert call["name"] in ("calculator", "weather")
    path.write_text(json.dumps([STRICT]))
    refused = await run(*asked, env=env)
    assert refused.returncode != 0
    assert "tools[0].parameters" in refused.stderr
