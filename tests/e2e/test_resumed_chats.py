"""Chats with tools and reasoning: how they are told, also by another gateway after a loss."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import MessageParam, TextBlock, ThinkingBlock, ToolParam, ToolUseBlock
from harness.another_gateway import another_gateway
from harness.chat_templates import QWEN3
from harness.client import Client
from harness.cut_stream import cut_stream
from harness.http_client import openai_client
from harness.reciting_model import reciting_model
from openai.types.responses import FunctionToolParam

from inferflux.cli.stack import Stack, StackOptions
from inferflux.client import AsyncClient
from inferflux.v1 import generation_pb2, inference_pb2, tokens_pb2

pytestmark = pytest.mark.e2e

# What the model says, a token each. Two tokens share a character.
THOUGHTS = [f"{i}, ".encode() for i in range(60)]
WORDS = [f"word{i} ".encode() for i in range(40)]
# Where the constraint leaves one text alone, it decides the tokens too. So each token of a call ends where
# there is a choice: in the text, within a number, after the call.
DIGITS = [b"%d" % i for i in range(10, 100)]
CALLS = [
    *(
        b"\n<tool",
        b'_call>\n{"name": "add", "arguments": {"a": 1',
        *DIGITS,
        b', "b":',
        b" 7",
        b"}}\n</tool_call>",
    ),
    *(b'\n<tool_call>\n{"name": "add", "arguments": {"a": 1,', b' "b": 2', b" }}\n</tool_call>"),
]
LARGE = int(b"1" + b"".join(DIGITS))
SPLIT = (b"caf\xc3", b"\xa9.")
PIECES = [b"<th", b"ink>\n", *THOUGHTS, *SPLIT, b"\n</", b"think>", b"\n\n", *WORDS, *CALLS]
REASONING = b"".join([*THOUGHTS, *SPLIT]).decode()
CONTENT = b"".join(WORDS).decode().rstrip()
# With the markers.
REASONING_TOKENS = PIECES.index(b"think>") + 1
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOL = inference_pb2.Tool(name="add", description="Adds.", parameters=json.dumps(PARAMETERS))
# Tokens after which a client loses its connection: before the first, in the reasoning, in its marker, in the
# text, in the first call's number, and in the second call.
CUTS = (0, 30, REASONING_TOKENS - 1, REASONING_TOKENS + 20, PIECES.index(b"50"), len(PIECES) - 2)


@dataclass
class Told:
    """What a client puts together of deltas."""

    content: str = ""
    reasoning: str = ""
    # Id, name and arguments.
    calls: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, delta: inference_pb2.ChatDelta) -> None:
        self.content += delta.content
        self.reasoning += delta.reasoning_content
        for part in delta.tool_calls:
            if part.id:
                assert part.index == len(self.calls)
                self.calls.append((part.id, part.name, ""))
            call_id, name, arguments = self.calls[part.index]
            self.calls[part.index] = (call_id, name, arguments + part.arguments)

    def copy(self) -> Told:
        return Told(self.content, self.reasoning, list(self.calls))


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    path = reciting_model(PIECES, QWEN3).write(tmp_path_factory.mktemp("model") / "reciting.gguf")
    async with Stack(StackOptions(model=path, slots=4, threads=1)) as running:
        yield running


@pytest.fixture(scope="module")
async def other(stack: Stack) -> AsyncIterator[str]:
    """The address of a second gateway."""
    async with another_gateway(stack) as gateway:
        yield gateway.endpoint


def chat(stack: Stack) -> inference_pb2.ChatRequest:
    return inference_pb2.ChatRequest(
        model=stack.model_name,
        messages=[inference_pb2.ChatMessage(role="user", content="What is 12 + 7?")],
        params=generation_pb2.GenerationParams(sampling=generation_pb2.SamplingParams(temperature=0)),
        tools=[TOOL],
        resume_window_s=60,
    )


async def test_a_resumed_chat_is_told_on_wherever_it_was_lost(
    stack: Stack, client: Client, other: str
) -> None:
    told = Told()
    # What the client had, by the number of its tokens.
    had = {0: told.copy()}
    finished: tokens_pb2.Finished | None = None
    call = client.inference.Chat(chat(stack), metadata=client.metadata("whole"))
    async for response in call:
        told.add(response.delta)
        if response.chunk.token_ids:
            had[response.chunk.offset + len(response.chunk.token_ids)] = told.copy()
        if response.chunk.HasField("finished"):
            finished = response.chunk.finished
    assert (told.reasoning, told.content) == (REASONING, CONTENT)
    calls = [(name, json.loads(arguments)) for _, name, arguments in told.calls]
    assert calls == [("add", {"a": LARGE, "b": 7}), ("add", {"a": 1, "b": 2})]
    assert len(had) > 20
    assert finished is not None
    assert finished.usage.reasoning_tokens == REASONING_TOKENS

    elsewhere = Client(other, stack.api_key)
    for offset, before in had.items():
        request = inference_pb2.ResumeRequest(request_id="whole", offset=offset)
        async for resumed in elsewhere.inference.Resume(request, metadata=elsewhere.metadata()):
            assert resumed.HasField("delta")
            before.add(resumed.delta)
        assert before == told, offset
    await elsewhere.close()


@pytest.mark.parametrize("cut", CUTS)
async def test_the_client_takes_a_chat_with_tools_up_again(stack: Stack, other: str, cut: int) -> None:
    async with (
        cut_stream(stack.endpoint, after=cut) as lossy,
        AsyncClient([lossy.endpoint, other], api_key=stack.api_key) as client,
    ):
        stream = client.chat(
            "What is 12 + 7?", model=stack.model_name, tools=[TOOL], temperature=0, resume_window_s=60
        )
        told = Told()
        async for _ in stream:
            if stream.delta is not None:
                told.add(stream.delta)
        assert lossy.has_cut
        assert stream.resumes == 1
    assert (told.reasoning, told.content) == (REASONING, CONTENT)
    assert [(name, json.loads(arguments)) for _, name, arguments in told.calls] == [
        ("add", {"a": LARGE, "b": 7}),
        ("add", {"a": 1, "b": 2}),
    ]
    assert len({call_id for call_id, _, _ in told.calls}) == 2


@pytest.fixture
async def sdk(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai_client(int(stack.http_url.rpartition(":")[2]), stack.api_key) as client:
        yield client


async def test_openais_client_is_told_reasoning_and_how_many_tokens_it_took(
    stack: Stack, sdk: openai.AsyncOpenAI
) -> None:
    answer = await sdk.chat.completions.create(
        model=stack.model_name, messages=[{"role": "user", "content": "Hello"}], temperature=0
    )
    message = answer.choices[0].message
    assert getattr(message, "reasoning_content", "") == REASONING
    assert message.content is not None
    assert message.content.startswith(CONTENT)
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == REASONING_TOKENS


async def test_the_events_of_a_response_come_in_the_order_that_openais_client_expects(
    stack: Stack, sdk: openai.AsyncOpenAI
) -> None:
    """The client itself raises where an item's events come before it, twice, or with another identity."""
    tool: FunctionToolParam = {
        "type": "function",
        "name": "add",
        "description": "Adds.",
        "parameters": dict(PARAMETERS),
        "strict": True,
    }
    asked = {"model": stack.model_name, "input": "What is 12 + 7?", "temperature": 0}
    kinds: list[str] = []
    async with sdk.responses.stream(**asked, tools=[tool]) as stream:  # type: ignore[call-overload]
        async for event in stream:
            kind = event.type.removeprefix("response.")
            if kinds[-1:] != [kind]:
                kinds.append(kind)
        final = await stream.get_final_response()
    begin, end = ("output_item.added", "content_part.added"), ("content_part.done", "output_item.done")
    arguments = ("function_call_arguments.delta", "function_call_arguments.done")
    assert kinds == [
        *("created", "in_progress"),
        *(*begin, "reasoning_text.delta", "reasoning_text.done", *end),
        *(*begin, "output_text.delta", "output_text.done", *end),
        *(begin[0], *arguments, end[1]),
        *(begin[0], *arguments, end[1]),
        "completed",
    ]
    thought, message, *calls = final.output
    assert thought.type == "reasoning"
    assert [part.text for part in thought.content or []] == [REASONING]
    assert message.type == "message"
    assert final.output_text == CONTENT
    assert [one.type == "function_call" and json.loads(one.arguments) for one in calls] == [
        {"a": LARGE, "b": 7},
        {"a": 1, "b": 2},
    ]
    assert final.usage is not None
    assert final.usage.output_tokens_details.reasoning_tokens == REASONING_TOKENS


async def test_anthropics_client_is_told_thoughts_text_and_calls_in_blocks_and_sends_them_back(
    stack: Stack,
) -> None:
    tool: ToolParam = {"name": "add", "description": "Adds.", "input_schema": PARAMETERS}
    asked: list[MessageParam] = [{"role": "user", "content": "What is 12 + 7?"}]
    async with anthropic.AsyncAnthropic(
        base_url=stack.http_url, api_key=stack.api_key, max_retries=0
    ) as client:
        async with client.messages.stream(
            model=stack.model_name,
            max_tokens=1000,
            messages=asked,
            tools=[tool],
            thinking={"type": "enabled", "budget_tokens": 1024},
            extra_body={"temperature": 0},
        ) as stream:
            final = await stream.get_final_message()
        thought, message, *calls = final.content
        assert isinstance(thought, ThinkingBlock)
        assert (thought.thinking, bool(thought.signature)) == (REASONING, True)
        assert isinstance(message, TextBlock)
        assert message.text.strip() == CONTENT
        assert [call.input for call in calls if isinstance(call, ToolUseBlock)] == [
            {"a": LARGE, "b": 7},
            {"a": 1, "b": 2},
        ]
        assert final.stop_reason == "tool_use"
        assert final.usage.output_tokens_details is not None
        assert final.usage.output_tokens_details.thinking_tokens == REASONING_TOKENS

        results: MessageParam = {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": call.id, "content": "19"}
                for call in calls
                if isinstance(call, ToolUseBlock)
            ],
        }

        async def counted(said: list[Any]) -> int:
            history: list[MessageParam] = [*asked, {"role": "assistant", "content": said}, results]
            tokens = await client.messages.count_tokens(
                model=stack.model_name, messages=history, tools=[tool]
            )
            return tokens.input_tokens

        assert await counted([*final.content]) > await counted(final.content[1:]) + REASONING_TOKENS // 2
