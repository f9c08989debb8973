"""Custom tools, and choices of some tools, of OpenAI's API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.errors.errors import in_words_of
from inferflux.gateway.http.openai import chat, custom_tools
from inferflux.gateway.http.openai.answers import Head
from inferflux.gateway.http.openai.bodies import ChatBody, ResponsesBody
from inferflux.gateway.http.openai.responses import responses
from inferflux.gateway.http.paths.reading import parse
from inferflux.gateway.request.tools import tool_use_of
from inferflux.v1 import generation_pb2, inference_pb2, tokens_pb2

F: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
G: dict[str, Any] = {"type": "function", "function": {"name": "g"}}
FORM = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-z]+"}}
WRITE: dict[str, Any] = {
    "type": "custom",
    "custom": {"name": "write", "description": "Writes.", "format": FORM},
}
LARK: dict[str, Any] = {"syntax": "lark", "definition": 'start: "a"'}
BROKEN = {"syntax": "regex", "definition": "("}
TEXT = 'a "quoted"\\ line\nand 𝄞 é\t'


def chat_body(**fields: Any) -> ChatBody:
    made = {"messages": [{"role": "user", "content": "hello"}]} | fields
    return parse(ChatBody, json.dumps(made).encode())


def response_body(**fields: Any) -> ResponsesBody:
    return parse(ResponsesBody, json.dumps({"input": "hello"} | fields).encode())


def chat_use(**fields: Any) -> tuple[list[str], list[str], bool]:
    """(tools that the model is told of, those that it may call, whether it has to)."""
    use = tool_use_of(chat.to_request(chat_body(**fields)))
    return [tool.name for tool in use.tools], [one.name for one in use.functions], use.is_required


def test_some_of_the_tools_may_be_called_and_all_are_told() -> None:
    for mode in ("auto", "required"):
        allowed = {"mode": mode, "tools": [G]}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        assert chat_use(tools=[F, G, WRITE], tool_choice=choice) == (
            ["f", "g", "write"],
            ["g"],
            mode == "required",
        )
    named = {"type": "custom", "custom": {"name": "write"}}
    assert chat_use(tools=[F, WRITE], tool_choice=named) == (["f", "write"], ["write"], True)


def test_of_a_response_hosted_tools_are_not_among_those_allowed() -> None:
    tools = [{"type": "function", "name": "f"}, {"type": "custom", "name": "write"}, {"type": "web_search"}]
    allowed = [{"type": "web_search"}, {"type": "custom", "name": "write"}]
    for given, names in ((allowed, ["write"]), (allowed[:1], [])):
        choice = {"type": "allowed_tools", "mode": "auto", "tools": given}
        body = response_body(tools=tools, tool_choice=choice)
        assert [one.name for one in tool_use_of(responses.to_request(body)).functions] == names
        assert responses.ResponseHead("1", 7, body).to_json("completed", [])["tool_choice"] == choice


def test_allowed_tools_that_were_skipped_are_left_out_and_those_never_sent_refused() -> None:
    patch = {"type": "custom", "name": "patch", "format": {"type": "grammar", **LARK}}
    tools = [{"type": "function", "name": "f"}, patch, {"type": "mcp", "server_label": "x"}]
    sent = [{"type": "custom", "name": "patch"}, {"type": "mcp", "server_label": "x"}]
    for mode in ("auto", "required"):
        choice = {"type": "allowed_tools", "mode": mode, "tools": [*sent, {"type": "function", "name": "f"}]}
        made = responses.to_request(response_body(tools=tools, tool_choice=choice))
        assert [one.name for one in tool_use_of(made).functions] == ["f"]
    for never in (
        {"type": "custom", "name": "f2"},
        {"type": "web_search"},
        {"type": "function", "name": "patch"},
    ):
        choice = {"type": "allowed_tools", "tools": [never, *sent]}
        with pytest.raises(InvalidArgument) as caught:
            tool_use_of(responses.to_request(response_body(tools=tools, tool_choice=choice)))
        assert caught.value.field == "tool_choice"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [F], "mode": "none"}}, "tool_choice.mode"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [WRITE]}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [F, {"type": "web_search"}]}}, "tool_choice"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].custom.name"),
        (
            {
                "tools": [
                    {
                        "type": "custom",
                        "custom": {"name": "w", "format": {"type": "grammar", "grammar": LARK}},
                    }
                ]
            },
            "tools[0].custom.format",
        ),
        (
            {"tools": [F, {"type": "custom", "name": "w", "format": {"type": "grammar", **LARK}}]},
            "tools[1].format",
        ),
        (
            {"tools": [{"type": "custom", "name": "w", "format": {"type": "grammar", **BROKEN}}]},
            "tools[0].format",
        ),
    ],
)
def test_a_choice_or_a_format_that_is_not_served_is_refused_by_name(
    fields: dict[str, Any], field: str
) -> None:
    body = chat_body(**{"tools": [F, G]} | fields)
    with pytest.raises(InvalidArgument) as caught:
        tool_use_of(chat.to_request(body))
    error = in_words_of(caught.value, chat.field_names(body))
    assert isinstance(error, InvalidArgument)
    assert error.field == field


def test_a_custom_tool_is_a_function_of_a_text() -> None:
    for tool in (WRITE, {"type": "custom", **WRITE["custom"]}):
        (made,) = chat.to_request(chat_body(tools=[tool])).tools
        assert (made.name, made.description, made.strict) == ("write", "Writes.", True)
        assert json.loads(made.parameters)["properties"] == {
            "input": {"type": "string", "pattern": "^(?:[a-z]+)$"}
        }


def parts_of(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("is_ascii", [True, False])
def test_the_text_of_a_call_comes_as_its_arguments_do(size: int, is_ascii: bool) -> None:
    arguments = json.dumps({"input": TEXT}, ensure_ascii=is_ascii, indent=1)
    reader = custom_tools.InputText()
    told = [reader.add(part) for part in parts_of(arguments, size)]
    assert "".join(told) == TEXT
    assert size > 7 or sum(map(bool, told)) > 2
    cut = custom_tools.InputText()
    assert "".join(cut.add(part) for part in parts_of('{"input": "ab\\u00', size)) == "ab"


def deltas() -> list[inference_pb2.ChatDelta]:
    """A call of a custom tool, then one of a function."""
    call = inference_pb2.ToolCallDelta
    first, *rest = parts_of(custom_tools.arguments_of(TEXT), 3)
    calls = [call(index=0, id="c1", name="write", arguments=first)]
    calls += [call(index=0, arguments=part) for part in rest]
    calls += [call(index=1, id="c2", name="f", arguments="{"), call(index=1, arguments="}")]
    return [inference_pb2.ChatDelta(tool_calls=[one]) for one in calls]


def end() -> tokens_pb2.TokenChunk:
    return tokens_pb2.TokenChunk(finished=tokens_pb2.Finished(reason=generation_pb2.FINISH_REASON_STOP))


def test_calls_of_custom_tools_are_texts_in_chats_whole_and_streamed() -> None:
    customs = custom_tools.names_of(chat_body(tools=[F, WRITE]).tools)
    head = Head("chatcmpl-1", "demo", 7)
    answer = chat.ChatAnswer(head, n=1, has_logprobs=False, customs=customs)
    stream = chat.ChatStream(head, n=1, has_logprobs=False, customs=customs)
    texts = {"input": "", "arguments": ""}
    for delta in deltas():
        answer.add(0, tokens_pb2.TokenChunk(token_ids=[1]), delta)
        for message in stream.messages(0, tokens_pb2.TokenChunk(token_ids=[1]), delta):
            for call in message["choices"][0]["delta"].get("tool_calls", ()):
                assert ("custom" in call) is (call["index"] == 0)
                for name, text in call.get("custom", call.get("function")).items():
                    texts[name] = texts.get(name, "") + text
    answer.add(0, end(), inference_pb2.ChatDelta())
    (choice,) = answer.to_json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"] == [
        {"id": "c1", "type": "custom", "custom": {"name": "write", "input": TEXT}},
        {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    ]
    assert texts == {"name": "writef", "input": TEXT, "arguments": "{}"}
    back = {"role": "assistant", "content": None, "tool_calls": choice["message"]["tool_calls"]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "done"}
    said = chat.to_request(chat_body(messages=[back, result])).messages[0]
    assert json.loads(said.tool_calls[0].arguments) == {"input": TEXT}


def test_calls_of_custom_tools_are_items_of_their_own_in_responses() -> None:
    tools = [{"type": "custom", "name": "write"}, {"type": "function", "name": "f"}]
    stream = responses.ResponseStream(responses.ResponseHead("1", 7, response_body(tools=tools)))
    events = []
    for delta in deltas():
        events += stream.messages(0, tokens_pb2.TokenChunk(token_ids=[1]), delta)
    events += stream.messages(0, end(), inference_pb2.ChatDelta())
    kind = "response.custom_tool_call_input"
    assert "".join(event["delta"] for event in events if event["type"] == f"{kind}.delta") == TEXT
    assert [event["input"] for event in events if event["type"] == f"{kind}.done"] == [TEXT]
    custom, function = events[-1]["response"]["output"]
    assert (custom["type"], custom["call_id"], custom["name"]) == ("custom_tool_call", "c1", "write")
    assert (custom["input"], function["arguments"]) == (TEXT, "{}")
    back = {"type": "custom_tool_call", "call_id": "c1", "name": "write", "input": custom["input"]}
    (said,) = responses.to_request(response_body(input=[back])).messages
    assert json.loads(said.tool_calls[0].arguments) == {"input": TEXT}


def test_a_response_has_the_switches_of_a_chat() -> None:
    made = responses.to_request(response_body(chat_template_kwargs={"a": [1]}, enable_thinking=False))
    assert json.loads(made.chat_template_kwargs) == {"a": [1], "enable_thinking": False}
    assert not responses.to_request(response_body()).chat_template_kwargs


def test_a_named_function_is_called_once_unless_calls_may_be_parallel() -> None:
    named = {"type": "function", "function": {"name": "f"}}
    for choice, parallel, is_single in (
        (named, None, True),
        (named, False, True),
        (named, True, False),
        ("required", None, False),
    ):
        body = chat_body(tools=[F, G], tool_choice=choice, parallel_tool_calls=parallel)
        assert tool_use_of(chat.to_request(body)).is_single is is_single
