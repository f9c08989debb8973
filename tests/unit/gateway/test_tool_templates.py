"""Tools and calls in the chat templates of families of models, and what is found out about a template."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from harness import chat_templates

from inferflux.common.text.chat_templates import conversation
from inferflux.common.text.chat_templates.capabilities import Capabilities
from inferflux.common.text.chat_templates.conversation import as_read
from inferflux.common.text.chat_templates.generic_tools import with_generic_tools
from inferflux.common.text.chat_templates.probe import reasoning_of, tool_support
from inferflux.common.text.chat_templates.templates import ChatTemplate
from inferflux.gateway.tokenizer.control_texts import ControlTexts
from inferflux.gateway.tokenizer.template_messages import template_messages, template_tools
from inferflux.v1 import generation_pb2, inference_pb2

Message = inference_pb2.ChatMessage
SCHEMA = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
WEATHER = inference_pb2.Tool(name="get_weather", description="The weather of a city.", parameters=SCHEMA)
CALL = inference_pb2.ToolCall(id="call_1234567890", name="get_weather", arguments='{"city": "Köln"}')
CONVERSATION = [
    Message(role="user", content="How is it in Köln?"),
    Message(role="assistant", tool_calls=[CALL]),
    Message(role="tool", tool_call_id=CALL.id, content="rain"),
]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, tokens={"bos_token": "<s>", "eos_token": "</s>"}, max_rendered_bytes=1 << 20)


def render(source: str, *tools: inference_pb2.Tool) -> str:
    known = template(source)
    return known.render(as_read(said(CONVERSATION), Capabilities(known)), template_tools(tools))


def said(messages: Sequence[Message]) -> list[conversation.Message]:
    return template_messages(messages, ControlTexts([], mark="mark"))


@pytest.mark.parametrize(
    ("source", "call"),
    [
        (chat_templates.QWEN25, '<tool_call>{"name":"$name","arguments":$arguments}</tool_call>'),
        (chat_templates.HERMES, '<tool_call>{"name":"$name","arguments":$arguments}</tool_call>'),
        (chat_templates.LLAMA31, '{"name":"$name","parameters":$arguments}'),
        (chat_templates.MISTRAL, '[TOOL_CALLS][{"name":"$name","arguments":$arguments,"id":"$id"}'),
        (chat_templates.QWEN3_CODER, '<tool_call><function=$name","arguments":$arguments}</tool_call>'),
    ],
)
def test_the_spelling_of_calls_is_found_by_rendering_one(source: str, call: str) -> None:
    found = tool_support(template(source))
    assert found.shows_tools
    assert "".join((found.syntax.calls.begin + found.syntax.calls.call).split()) == call


@pytest.mark.parametrize("source", ["{{ messages[-1].role }}", "{{ 1 / 0 }}"])
def test_a_template_that_shows_no_tools_is_known_as_such(source: str) -> None:
    assert not tool_support(template(source)).is_usable


def test_a_template_without_a_place_for_tools_gets_them_from_the_system() -> None:
    known = template(chat_templates.CHATML)
    found = tool_support(known)
    assert (found.shows_tools, found.is_usable) == (False, True)
    assert found.syntax.calls.call.startswith('<tool_call>\n{"name": "$name"')
    told = with_generic_tools(said(CONVERSATION), template_tools([WEATHER]), Capabilities(known))
    text = known.render(as_read(told, Capabilities(known)))
    assert "The weather of a city." in text[: text.index("<|im_start|>user")]
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call><|im_end|>'
    result = "<|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>"
    assert text.index(call) < text.index(result)


@pytest.mark.parametrize(
    ("source", "call", "result"),
    [
        (
            chat_templates.QWEN25,
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call><|im_end|>',
            "<|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>",
        ),
        (
            chat_templates.HERMES,
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call><|im_end|>',
            "<|im_start|>tool\n<tool_response>\nrain\n</tool_response><|im_end|>",
        ),
        (
            chat_templates.LLAMA31,
            '\n\n{"name": "get_weather", "parameters": {"city": "Köln"}}<|eot_id|>',
            "<|start_header_id|>ipython<|end_header_id|>\n\nrain<|eot_id|>",
        ),
        (
            chat_templates.MISTRAL,
            '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Köln"}, "id": "',
            '[TOOL_RESULTS] {"content": rain, "call_id": "',
        ),
    ],
)
def test_calls_and_results_are_rendered_by_the_models_own_template(
    source: str, call: str, result: str
) -> None:
    text = render(source, WEATHER)
    assert call in text
    assert result in text[text.index(call) :]
    assert "The weather of a city." in text[: text.index(call)] or source == chat_templates.LLAMA31
    if source == chat_templates.MISTRAL:  # both have the same id, of 9 letters and digits
        spelled = text.split('"id": "')[1][:10]
        assert spelled.endswith('"')
        assert f'"call_id": "{spelled}' in text


def test_a_tool_is_one_line_of_json_as_its_caller_wrote_it() -> None:
    text = render(chat_templates.QWEN25, WEATHER)
    (line,) = text.split("<tools>\n")[1].split("\n</tools>")[0].splitlines()
    assert json.loads(line) == {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": json.loads(SCHEMA),
        },
    }
    assert line.index('"properties"') < line.index('"required"')
    assert "<tools>" not in render(chat_templates.QWEN25)


def test_templates_get_the_newer_roles_names_and_reasoning() -> None:
    reads = Capabilities(template(chat_templates.QWEN3 + "{{ messages[-1].reasoning_content }}"))

    def made(message: Message) -> object:
        return as_read(said([message]), reads)[0]

    developer = Message(role="developer", content="be brief")
    assert made(developer) == {"role": "system", "content": "be brief"}
    tool = Message(role="tool", content="", name="weather", tool_call_id="call_1")
    assert made(tool) == {"role": "tool", "content": "", "name": "weather", "tool_call_id": "call_1"}
    thought = Message(role="assistant", content="19", reasoning_content="12 + 7")
    assert made(thought) == {"role": "assistant", "content": "19", "reasoning_content": "12 + 7"}


def test_a_result_gets_the_name_of_its_call() -> None:
    _, _, result = as_read(said(CONVERSATION), Capabilities(template(chat_templates.QWEN25)))
    assert result["name"] == "get_weather"


@pytest.mark.parametrize(
    ("source", "end", "expected"),
    [
        (chat_templates.CHATML, "assistant\n", generation_pb2.REASONING_FORMAT_UNSPECIFIED),
        (chat_templates.QWEN3, "assistant\n", generation_pb2.REASONING_FORMAT_OPTIONAL),
        (chat_templates.QWEN3, "assistant\n<think>\n", generation_pb2.REASONING_FORMAT_OPEN),
        (chat_templates.QWEN3, "<think>\n\n</think>\n\n", generation_pb2.REASONING_FORMAT_UNSPECIFIED),
    ],
)
def test_what_may_be_reasoning_is_seen_from_template_and_prompt(
    source: str, end: str, expected: generation_pb2.ReasoningFormat.ValueType
) -> None:
    syntax = tool_support(template(source)).syntax
    assert reasoning_of(syntax, "<think>old</think> " + end) == expected


def test_a_template_that_opens_a_thought_is_known_by_its_prompt() -> None:
    opens = template(chat_templates.DEEPSEEK_R1)
    prompt = opens.render(as_read(said(CONVERSATION[:1]), Capabilities(opens)))
    assert reasoning_of(tool_support(opens).syntax, prompt) == generation_pb2.REASONING_FORMAT_OPEN
