"""Tools of a file, and calls in an answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from inferflux.cli.ask.answer import Answer
from inferflux.cli.ask.tools import tools_of
from inferflux.v1 import generation_pb2, inference_pb2, tokens_pb2


def test_tools_are_read_from_a_file_in_either_form(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    path.write_text(json.dumps([{"type": "function", "function": function}, {"name": "g"}]))
    first, second = tools_of(path)
    assert (first.name, first.description, first.parameters) == ("f", "d", '{"type": "object"}')
    assert (second.name, second.parameters) == ("g", "")
    assert tools_of(None) == []


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "[1]", '[{"type": "function"}]', '[{"name": "f", "description": 1}]']
)
def test_a_file_without_tools_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tools.json"
    path.write_text(text)
    with pytest.raises(typer.BadParameter, match=r"tools\.json"):
        tools_of(path)


def test_an_answer_shows_content_and_gathers_its_calls() -> None:
    answer = Answer(sent_at=0.0)
    part = inference_pb2.ToolCallDelta
    deltas = [
        inference_pb2.ChatDelta(content="Well."),
        inference_pb2.ChatDelta(tool_calls=[part(index=0, id="c", name="f", arguments="{")]),
        inference_pb2.ChatDelta(tool_calls=[part(index=0, arguments="}")]),
    ]
    for delta in deltas:
        answer.on_delta(delta)
        answer.take(tokens_pb2.TokenChunk(token_ids=[1], text="<raw>"), 1.0)
    finished = tokens_pb2.Finished(reason=generation_pb2.FINISH_REASON_STOP)
    answer.on_delta(inference_pb2.ChatDelta())
    answer.take(tokens_pb2.TokenChunk(finished=finished), 1.0)
    assert answer.text == "Well."
    assert answer.finish_reason == "tool_calls"
    assert answer.as_dict()["tool_calls"] == [{"id": "c", "name": "f", "arguments": "{}"}]


def test_an_answer_that_is_resumed_within_a_call_shows_what_it_gets_of_it() -> None:
    answer = Answer(sent_at=0.0)
    part = inference_pb2.ToolCallDelta
    answer.on_delta(inference_pb2.ChatDelta(tool_calls=[part(index=1, arguments=": 2}")]))
    answer.on_delta(inference_pb2.ChatDelta(tool_calls=[part(index=2, id="d", name="g", arguments="{}")]))
    assert answer.as_dict()["tool_calls"] == [
        {"id": "", "name": "", "arguments": ": 2}"},
        {"id": "d", "name": "g", "arguments": "{}"},
    ]


def test_a_resumed_stream_which_tells_no_deltas_is_shown_as_it_comes() -> None:
    answer = Answer(sent_at=0.0)
    answer.on_delta(inference_pb2.ChatDelta(content="one "))
    shown = [answer.take(tokens_pb2.TokenChunk(text=text), now=1.0) for text in ("one ", "two ", "three")]
    assert shown == ["one ", "two ", "three"]
