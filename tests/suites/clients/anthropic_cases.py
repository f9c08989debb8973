"""Anthropic's own client."""

from __future__ import annotations

import os

import anthropic
import pytest

MODEL = os.environ["SUITE_MODEL"]
ASK = [{"role": "user", "content": "What is 12 + 7?"}]
TOOL = {
    "name": "calculator",
    "description": "Computes an arithmetic expression.",
    "input_schema": {
        "type": "object",
        "properties": {"expression": {"type": "string", "maxLength": 20}},
        "required": ["expression"],
    },
}


@pytest.fixture
def client():
    return anthropic.Anthropic(
        base_url=os.environ["SUITE_URL"], api_key=os.environ["SUITE_KEY"], max_retries=0
    )


def test_message(client):
    answer = client.messages.create(model=MODEL, max_tokens=20, messages=ASK, system="Be short.")
    assert answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert answer.usage.input_tokens


def test_stream(client):
    with client.messages.stream(model=MODEL, max_tokens=20, messages=ASK) as stream:
        text = "".join(stream.text_stream)
    assert text == stream.get_final_message().content[0].text


def test_tools(client):
    choice = {"type": "any"}
    answer = client.messages.create(
        model=MODEL, max_tokens=80, messages=ASK, tools=[TOOL], tool_choice=choice
    )
    assert answer.stop_reason == "tool_use"
    use = next(block for block in answer.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "19"}
    after = [*ASK, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(model=MODEL, max_tokens=40, messages=after, tools=[TOOL]).content


def test_streamed_tool(client):
    with client.messages.stream(
        model=MODEL,
        max_tokens=80,
        messages=ASK,
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "calculator"},
    ) as stream:
        final = stream.get_final_message()
    assert "expression" in final.content[-1].input


def test_cached_blocks(client):
    system = [{"type": "text", "text": "Be short. " * 20, "cache_control": {"type": "ephemeral"}}]
    for _ in range(2):
        answer = client.messages.create(model=MODEL, max_tokens=4, messages=ASK, system=system)
    assert answer.usage.cache_read_input_tokens > 0


def test_stop_sequence(client):
    answer = client.messages.create(
        model=MODEL,
        max_tokens=200,
        messages=[{"role": "user", "content": "Count from 1 to 9."}],
        stop_sequences=["5"],
    )
    assert answer.stop_reason in ("stop_sequence", "end_turn")


def test_count_tokens(client):
    counted = client.messages.count_tokens(model=MODEL, messages=ASK).input_tokens
    assert counted > 4


def test_models(client):
    assert MODEL in {one.id for one in client.models.list()}


def test_errors(client):
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model=MODEL, max_tokens=0, messages=ASK)
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=os.environ["SUITE_URL"], api_key="wrong", max_retries=0).models.list()
