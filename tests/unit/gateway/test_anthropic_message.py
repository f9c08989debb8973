"""Token chunks to Anthropic's messages and their events, and errors in their shape."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from inferflux.common.contract.errors import (
    Cancelled,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from inferflux.gateway.http.anthropic.message import MessageAnswer, MessageStream
from inferflux.gateway.http.errors.shapes import shape_of, to_anthropic
from inferflux.v1 import generation_pb2, inference_pb2, tokens_pb2

Chunk = tokens_pb2.TokenChunk
Delta = inference_pb2.ChatDelta
STOP = generation_pb2.FINISH_REASON_STOP
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)

CALL = [
    inference_pb2.ToolCallDelta(index=0, id="call_1", name="look", arguments=""),
    inference_pb2.ToolCallDelta(index=0, arguments='{"at": '),
    inference_pb2.ToolCallDelta(index=0, arguments='"sea"}'),
]


def started() -> Chunk:
    return Chunk(started=tokens_pb2.Started(worker_id="w", prompt_tokens=10, cached_prompt_tokens=4))


def end(reason: generation_pb2.FinishReason.ValueType = STOP, **fields: Any) -> Chunk:
    usage = generation_pb2.Usage(
        prompt_tokens=10, cached_prompt_tokens=4, completion_tokens=3, reasoning_tokens=1
    )
    return Chunk(finished=tokens_pb2.Finished(reason=reason, usage=usage, **fields))


Script = list[tuple[Chunk, Delta | None]]


def script(*deltas: Delta, last: Chunk | None = None) -> Script:
    said: Script = [(Chunk(token_ids=[i]), delta) for i, delta in enumerate(deltas)]
    return [(started(), Delta()), *said, (last or end(), Delta())]


def whole(chunks: Script) -> dict[str, Any]:
    answer = MessageAnswer("1", "demo")
    for chunk, delta in chunks:
        answer.add(0, chunk, delta)
    made = answer.to_json()
    Message.model_validate(made, strict=True)
    return made


def events(chunks: Script) -> list[dict[str, Any]]:
    stream = MessageStream(MessageAnswer("1", "demo"))
    made = [event for chunk, delta in chunks for event in stream.messages(0, chunk, delta)]
    for event in made:
        if event["type"] != "ping":
            EVENT.validate_python(event)
    return made + stream.last()


def kinds(made: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in made]


def test_an_answer_is_a_message_with_blocks() -> None:
    thought, said = Delta(reasoning_content="hm"), Delta(content="I look.")
    made = whole(script(thought, said, *(Delta(tool_calls=[part]) for part in CALL)))
    assert made["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "unsigned"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": "sea"}},
    ]
    assert (made["id"], made["model"], made["stop_reason"]) == ("msg_1", "demo", "tool_use")
    assert made["usage"] == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 3,
        "output_tokens_details": {"thinking_tokens": 1},
    }


def test_a_stream_tells_of_each_block() -> None:
    made = events(script(Delta(reasoning_content="hm"), Delta(content="a"), Delta(tool_calls=CALL)))
    assert kinds(made) == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert made[0]["message"]["content"] == []
    assert made[0]["message"]["usage"]["input_tokens"] == 6
    assert made[0]["message"]["usage"]["cache_read_input_tokens"] == 4
    assert made[2]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert [event["delta"]["type"] for event in made if event["type"] == "content_block_delta"] == [
        "thinking_delta",
        "signature_delta",
        "text_delta",
        "input_json_delta",
        "input_json_delta",
    ]
    assert [event["index"] for event in made if event["type"] == "content_block_start"] == [0, 1, 2]
    assert made[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_an_answer_without_a_format_is_text() -> None:
    chunks: Script = [(started(), None), (Chunk(token_ids=[1], text="a"), None), (end(), None)]
    assert whole(chunks)["content"] == [{"type": "text", "text": "a"}]
    assert [event["delta"] for event in events(chunks) if event["type"] == "content_block_delta"] == [
        {"type": "text_delta", "text": "a"}
    ]


@pytest.mark.parametrize(
    ("last", "reason", "sequence"),
    [
        (end(), "end_turn", None),
        (end(stop="END"), "stop_sequence", "END"),
        (end(generation_pb2.FINISH_REASON_LENGTH), "max_tokens", None),
        (end(generation_pb2.FINISH_REASON_CONTENT_FILTER, stop="END"), "refusal", None),
    ],
)
def test_a_message_says_why_it_ended(last: Chunk, reason: str, sequence: str | None) -> None:
    made = whole(script(Delta(content="a"), last=last))
    assert (made["stop_reason"], made["stop_sequence"]) == (reason, sequence)
    told = events(script(Delta(content="a"), last=last))[-2]["delta"]
    assert told == {"stop_reason": reason, "stop_sequence": sequence}


def test_an_answer_without_a_word_is_an_empty_text() -> None:
    assert whole(script())["content"] == [{"type": "text", "text": ""}]
    assert kinds(events(script()))[2:4] == ["content_block_start", "content_block_stop"]


def test_white_space_before_a_call_is_no_text_and_before_a_text_is_its_own() -> None:
    made = whole(script(Delta(content="\n\n"), *(Delta(tool_calls=[part]) for part in CALL)))
    assert [block["type"] for block in made["content"]] == ["tool_use"]
    made = whole(script(Delta(content="\n"), Delta(content=" a"), Delta(content="\n"), Delta(content="b")))
    assert made["content"] == [{"type": "text", "text": "\n a\nb"}]
    assert whole(script(Delta(content="\n")))["content"] == [{"type": "text", "text": "\n"}]


def test_the_arguments_of_a_call_that_was_cut_are_those_that_came() -> None:
    cut = end(generation_pb2.FINISH_REASON_LENGTH)
    part = inference_pb2.ToolCallDelta(id="c", name="look", arguments='{"at": "sea", "from": "the')
    made = whole(script(Delta(tool_calls=[part]), last=cut))
    assert made["content"][0]["input"] == {"at": "sea", "from": "the"}
    assert made["stop_reason"] == "max_tokens"


def test_errors_have_anthropics_shape_and_types() -> None:
    found = {
        Unauthenticated("x"): (401, "authentication_error"),
        NotFound("x"): (404, "not_found_error"),
        ResourceExhausted("x"): (429, "rate_limit_error"),
        Unavailable("x"): (503, "overloaded_error"),
        Cancelled("x"): (499, "api_error"),
        InvalidArgument("x"): (400, "invalid_request_error"),
        ResourceExhausted("x", reason="BODY_TOO_LARGE"): (413, "request_too_large"),
    }
    for error, (status, kind) in found.items():
        told = to_anthropic(error, "r")
        assert told.status == status
        assert told.body == {"type": "error", "error": {"type": kind, "message": "x"}, "request_id": "r"}
        assert told.headers["request-id"] == "r"


def test_an_error_names_its_field_and_a_long_prompt_is_called_so() -> None:
    named = to_anthropic(InvalidArgument("it is bad", field="top_k"), "r").body["error"]
    assert named["message"] == "top_k: it is bad"
    long = to_anthropic(InvalidArgument("9 tokens", field="messages", reason="PROMPT_TOO_LONG"), "r").body[
        "error"
    ]
    assert long["message"] == "prompt is too long: 9 tokens"


def test_the_path_or_the_header_of_a_call_tells_its_errors_shape() -> None:
    version = [("anthropic-version", "2023-06-01")]
    for path, headers in (("/v1/messages", []), ("/v1/messages/batches", []), ("/v1/models", version)):
        assert "request_id" in shape_of(path, headers)(NotFound("x"), "r").body
    for path in ("/v1/models", "/v1/messagesx", "/v1/chat/completions"):
        assert "request_id" not in shape_of(path, [])(NotFound("x"), "r").body
