"""Fields of OpenAI's API that are served with some values only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness.deploy import ROOT

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.front.exchange import to_json
from inferflux.gateway.http.openai import chat, completions, generate, served
from inferflux.gateway.http.openai.bodies import ChatBody, CompletionBody, GenerateBody, ResponsesBody
from inferflux.gateway.http.openai.responses import responses
from inferflux.gateway.http.paths.reading import parse

Ask = Callable[..., Any]
FUNCTION = {"type": "function", "function": {"name": "f"}}


def ask_chat(**fields: Any) -> Any:
    given = {"model": "m", "messages": [{"role": "user", "content": "a"}], **fields}
    return chat.to_request(parse(ChatBody, to_json(given)))


def ask_completion(**fields: Any) -> Any:
    return completions.to_requests(parse(CompletionBody, to_json({"model": "m", "prompt": "a", **fields})))


def ask_response(**fields: Any) -> Any:
    return responses.to_request(parse(ResponsesBody, to_json({"model": "m", "input": "a", **fields})))


def ask_generate(**fields: Any) -> Any:
    body = parse(GenerateBody, to_json({"model": "m", "prompt": "a", **fields}))
    return generate.to_request(body)


@pytest.mark.parametrize(
    ("ask", "fields", "field"),
    [
        (ask_chat, {"audio": {}}, "audio"),
        (ask_chat, {"modalities": ["text", "audio"]}, "modalities"),
        (ask_chat, {"modalities": []}, "modalities"),
        (ask_chat, {"web_search_options": {}}, "web_search_options"),
        (ask_chat, {"functions": [{"name": "f"}], "tools": [FUNCTION]}, "functions"),
        (ask_chat, {"store": "yes"}, "store"),
        (ask_chat, {"verbosity": "loud"}, "verbosity"),
        (ask_chat, {"metadata": {"a": 1}}, "metadata.a"),
        (ask_chat, {"moderation": {"model": "x"}}, "moderation"),
        (ask_chat, {"stream_options": {"include_usage": True}}, "stream_options"),
        (ask_completion, {"best_of": 2}, "best_of"),
        (ask_completion, {"stream": False, "stream_options": {}}, "stream_options"),
        (ask_response, {"previous_response_id": "r"}, "previous_response_id"),
        (ask_response, {"previous_response_id": ""}, "previous_response_id"),
        (ask_response, {"background": True}, "background"),
        (ask_response, {"include": ["message.output_text.logprobs", "x"]}, "include[1]"),
        (ask_response, {"conversation": {"id": "c"}}, "conversation"),
        (ask_response, {"prompt": {"id": "p"}}, "prompt"),
        (ask_response, {"context_management": [{"type": "compaction"}]}, "context_management"),
        (ask_response, {"moderation": {"model": "x"}}, "moderation"),
        (ask_response, {"n": 2}, "n"),
        (ask_response, {"max_tokens": 5}, "max_tokens"),
        (ask_response, {"max_completion_tokens": 5}, "max_completion_tokens"),
        (ask_response, {"response_format": {"type": "json_object"}}, "response_format"),
        (ask_response, {"messages": []}, "messages"),
        (ask_response, {"metadata": {"a": None}}, "metadata.a"),
        (
            ask_response,
            {"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
        ),
        (ask_generate, {"n": 2}, "n"),
        (ask_generate, {"n": True}, "n"),
        (ask_generate, {"best_of": 2}, "best_of"),
        (ask_generate, {"echo": True}, "echo"),
        (ask_generate, {"suffix": "b"}, "suffix"),
        (ask_generate, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        (ask_generate, {"tool_choice": "required"}, "tool_choice"),
        (ask_generate, {"max_completion_tokens": 5}, "max_completion_tokens"),
        (ask_generate, {"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_a_known_field_with_another_value_is_refused_by_its_name(
    ask: Ask, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        ask(**fields)
    assert caught.value.field == field
    assert caught.value.message.startswith(field)


@pytest.mark.parametrize(
    ("ask", "fields"),
    [
        (
            ask_chat,
            {
                "modalities": ["text"],
                "store": True,
                "verbosity": "high",
                "prediction": {"type": "content", "content": "a"},
                "metadata": {"a": "b"},
                "tools": [],
            },
        ),
        (ask_chat, {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": True}}),
        (ask_completion, {"suffix": "", "n": 2, "best_of": 2}),
        (
            ask_response,
            {
                "store": True,
                "background": False,
                "truncation": "auto",
                "include": ["reasoning.encrypted_content"],
                "reasoning": {},
                "context_management": [],
                "max_tool_calls": 3,
                "n": 1,
            },
        ),
        (ask_response, {"reasoning": {"effort": None, "summary": "auto"}, "text": {"verbosity": "high"}}),
        (ask_generate, {"n": 1, "echo": False, "tools": [], "tool_choice": "auto", "suffix": ""}),
    ],
)
def test_values_that_change_nothing_are_taken_and_so_are_unknown_fields(
    ask: Ask, fields: dict[str, Any]
) -> None:
    plain = {name: value for name, value in fields.items() if name in ("stream", "n", "include")}
    assert ask(**fields, is_unknown=[1]) == ask(**plain)


@pytest.mark.parametrize(
    ("ask", "table"),
    [
        (ask_chat, served.CHAT),
        (ask_response, served.RESPONSE),
        (ask_generate, served.GENERATE),
    ],
)
def test_null_stands_for_the_default(ask: Ask, table: served.Table) -> None:
    absent: dict[str, Any] = {path: None for path in table if "." not in path}
    assert ask(**absent) == ask()


def test_every_such_field_is_one_of_its_body_and_on_the_page() -> None:
    """A name that no body has could not be refused."""
    page = (ROOT / "docs/http.md").read_text()
    refused = page.split("## Values that are refused")[1].split("\n## ")[0]
    for body, table in (
        (ChatBody, served.CHAT),
        (ResponsesBody, served.RESPONSE),
        (GenerateBody, served.GENERATE),
    ):
        assert {path.partition(".")[0] for path in table} <= set(body.model_fields)
        assert not [path for path in table if f"`{path}`" not in refused]
