"""Bodies of responses and of POST /generate to requests, and token chunks to their answers."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from harness.projectors import picture, tone

from inferflux.common.contract.errors import InvalidArgument, Unavailable, to_http
from inferflux.gateway.http.docs.openapi import OPERATIONS, document
from inferflux.gateway.http.errors.errors import in_words_of
from inferflux.gateway.http.openai import generate
from inferflux.gateway.http.openai.bodies import GenerateBody, ResponsesBody
from inferflux.gateway.http.openai.responses import responses
from inferflux.gateway.http.paths.reading import parse
from inferflux.v1 import generation_pb2, inference_pb2, tokens_pb2


def body(**fields: Any) -> ResponsesBody:
    return parse(ResponsesBody, json.dumps({"model": "demo", "input": "hello"} | fields).encode())


def request(**fields: Any) -> inference_pb2.ChatRequest:
    return responses.to_request(body(**fields))


def head(**fields: Any) -> responses.ResponseHead:
    return responses.ResponseHead("1", 7, body(**fields))


def chunk(
    text: str, reason: generation_pb2.FinishReason.ValueType | None = None, *, logprob: str = ""
) -> tokens_pb2.TokenChunk:
    made = tokens_pb2.TokenChunk(token_ids=[1], text=text)
    if logprob:
        made.logprobs.add().chosen.text = logprob
    if reason is not None:
        usage = generation_pb2.Usage(prompt_tokens=5, cached_prompt_tokens=3, completion_tokens=2)
        made.finished.CopyFrom(tokens_pb2.Finished(reason=reason, usage=usage))
    return made


STOP, LENGTH = generation_pb2.FINISH_REASON_STOP, generation_pb2.FINISH_REASON_LENGTH


def test_an_input_is_a_text_or_messages_after_the_instructions() -> None:
    made = request(instructions="be brief").messages
    assert [(m.role, m.content) for m in made] == [("developer", "be brief"), ("user", "hello")]
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    items = [
        {"role": "user", "content": parts},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c"}]},
    ]
    said = [(message.role, message.content) for message in request(input=items).messages]
    assert said == [("user", "a\nb"), ("assistant", "c")]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"content": "a"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "image"}]}]}, "input[0].content[0].type"),
        (
            {
                "input": [
                    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]}
                ]
            },
            "input[0].output[0].type",
        ),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"truncation": "most"}, "truncation"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
    ],
)
def test_a_value_that_is_not_served_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        request(**fields)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        ("messages[0].content", "instructions"),
        ("messages[1].role", "input[0].role"),
        ("messages[2].tool_calls[1].name", "input[3].name"),
        ("messages[3].role", "input[4].role"),
        ("messages", "input"),
        ("params.max_tokens", "max_output_tokens"),
        ("params.constraint.regex", "structured_outputs.regex"),
        ("tools[0].name", "tools[0].name"),
    ],
)
def test_errors_name_the_item_of_the_client(inner: str, outer: str) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f"}
    output = {"type": "function_call_output", "call_id": "c", "output": "1"}
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
    asked = body(
        instructions="Be brief.",
        input=[{"role": "user", "content": "a"}, thought, call, call, output],
        tools=[{"type": "function", "name": "f"}],
        structured_outputs={"regex": "a"},
    )
    error = in_words_of(InvalidArgument("x", field=inner), responses.field_names(asked))
    assert isinstance(error, InvalidArgument)
    assert error.field == outer


PNG = picture(1)
WAV = tone(0.1)


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def part_of(part: dict[str, Any]) -> inference_pb2.ContentPart:
    """A part after a text, which is the first."""
    content = [{"type": "input_text", "text": "a"}, part]
    (message,) = request(input=[{"role": "user", "content": content}]).messages
    assert (message.role, message.content, message.parts[0].text) == ("user", "", "a")
    return message.parts[1]


@pytest.mark.parametrize(
    ("part", "source", "given"),
    [
        ({"type": "input_image", "image_url": "https://x/y.png"}, "url", "https://x/y.png"),
        ({"type": "input_image", "image_url": "data:image/png;base64,AA"}, "url", "data:image/png;base64,AA"),
        ({"type": "input_file", "file_url": "https://x/y.png"}, "url", "https://x/y.png"),
        ({"type": "input_file", "file_data": base64_of(PNG), "filename": "y"}, "data", PNG),
        ({"type": "input_file", "file_data": f"data:image/png;base64,{base64_of(PNG)}"}, "data", PNG),
    ],
)
def test_images_of_an_input_are_parts(part: dict[str, Any], source: str, given: str | bytes) -> None:
    image = part_of({"detail": "low", **part}).image
    assert (image.WhichOneof("source"), getattr(image, source), image.detail) == (source, given, "low")


@pytest.mark.parametrize(
    ("part", "form"),
    [
        ({"type": "input_audio", "input_audio": {"data": base64_of(WAV), "format": "wav"}}, "wav"),
        ({"type": "input_file", "file_data": base64_of(WAV), "filename": "y.wav"}, ""),
        ({"type": "input_file", "file_data": f"data:audio/wav;base64,{base64_of(WAV)}"}, ""),
    ],
)
def test_sounds_of_an_input_are_parts(part: dict[str, Any], form: str) -> None:
    assert part_of(part).audio == inference_pb2.AudioInput(data=WAV, format=form)


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"type": "input_image"}, "image_url"),
        ({"type": "input_image", "file_id": "file-1"}, "file_id"),
        ({"type": "input_audio"}, "input_audio"),
        ({"type": "input_audio", "input_audio": {"data": "!", "format": "wav"}}, "input_audio.data"),
        ({"type": "input_file"}, "file_data"),
        ({"type": "input_file", "file_id": "file-1"}, "file_id"),
        ({"type": "input_file", "file_data": "!"}, "file_data"),
        ({"type": "input_file", "file_data": "data:text/plain,hello"}, "file_data"),
        ({"type": "input_file", "file_data": base64_of(b"%PDF-1.7")}, "file_data"),
        ({"type": "input_file", "file_data": "AA", "file_url": "https://x/y"}, ""),
        ({"type": "image_url", "image_url": "https://x/y.png"}, "type"),
    ],
)
def test_a_part_that_is_no_image_and_no_sound_is_named(part: dict[str, Any], field: str) -> None:
    other = {"type": "input_image", "image_url": "https://x/y.png"}
    with pytest.raises(InvalidArgument) as caught:
        request(input=[{"role": "user", "content": [other, part]}])
    assert caught.value.field == f"input[0].content[1].{field}".rstrip(".")


@pytest.mark.parametrize(
    ("part", "inner", "outer"),
    [
        ({"type": "input_text", "text": "a"}, "text", "text"),
        ({"type": "input_image", "image_url": "https://x/y"}, "image", "image_url"),
        ({"type": "input_image", "image_url": "https://x/y"}, "image.detail", "detail"),
        ({"type": "input_file", "file_url": "https://x/y"}, "image", "file_url"),
        ({"type": "input_file", "file_data": base64_of(PNG)}, "image", "file_data"),
        ({"type": "input_file", "file_data": base64_of(WAV)}, "audio", "file_data"),
        (
            {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
            "audio.format",
            "input_audio.format",
        ),
    ],
)
def test_errors_name_the_part_of_the_client(part: dict[str, Any], inner: str, outer: str) -> None:
    image = {"type": "input_image", "image_url": "https://x/y"}
    asked = body(instructions="Be brief.", input=[{"role": "user", "content": [image, part]}])
    raised = InvalidArgument("x", field=f"messages[1].parts[1].{inner}")
    error = in_words_of(raised, responses.field_names(asked))
    assert isinstance(error, InvalidArgument)
    assert error.field == f"input[0].content[1].{outer}"


def test_a_format_is_a_constraint() -> None:
    assert request(text={"format": {"type": "json_object"}}).params.constraint.json_object
    schema = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
    assert request(text={"format": schema}).params.constraint.json_schema == '{"type": "object"}'
    assert not request(text={"format": {"type": "text"}}).params.HasField("constraint")


def test_log_probabilities_are_asked_for_in_two_ways() -> None:
    assert not request().params.sampling.HasField("logprobs")
    assert request(top_logprobs=3).params.sampling.logprobs == 3
    assert request(include=["message.output_text.logprobs"]).params.sampling.HasField("logprobs")


def test_a_response_that_a_limit_ended_is_incomplete() -> None:
    for reason, status in ((STOP, "completed"), (LENGTH, "incomplete")):
        response = responses.Response(head())
        response.add(0, chunk("a"))
        response.add(0, chunk("b", reason))
        said = response.to_json()
        assert (said["status"], said["output"][0]["content"][0]["text"]) == (status, "ab")
        assert said["usage"]["input_tokens_details"] == {"cached_tokens": 3}
        assert (said["incomplete_details"] is not None) is (status == "incomplete")


def test_events_are_numbered_and_end_with_the_response() -> None:
    stream = responses.ResponseStream(head(text={"format": {"type": "json_object"}}))
    events = [
        e for c in (chunk("a", logprob="a"), chunk(""), chunk("b", LENGTH)) for e in stream.messages(0, c)
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [e["delta"] for e in events if e["type"] == "response.output_text.delta"] == ["a", "b"]
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["text"]["format"] == {"type": "json_object"}
    part = events[-1]["response"]["output"][0]["content"][0]
    assert [entry["token"] for entry in part["logprobs"]] == ["a"]


def test_a_token_without_a_text_of_its_own_has_its_log_probability_all_the_same() -> None:
    """Such as the first part of a character, or what may become a stop string."""
    stream = responses.ResponseStream(head())
    sent = [chunk("", logprob="1"), chunk("a", logprob="2"), chunk("", logprob="3"), chunk("", LENGTH)]
    events = [event for each in sent for event in stream.messages(0, each)]
    part = events[-1]["response"]["output"][0]["content"][0]
    assert (part["text"], [entry["token"] for entry in part["logprobs"]]) == ("a", ["1", "2", "3"])
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry["token"] for event in deltas for entry in event["logprobs"]] == ["1", "2", "3"]


def test_a_messages_log_probabilities_are_not_those_of_reasoning_and_calls() -> None:
    response = responses.Response(head())
    call = inference_pb2.ToolCallDelta(index=0, id="c", name="f", arguments="{}")
    response.add(0, chunk("hm", logprob="hm"), inference_pb2.ChatDelta(reasoning_content="hm"))
    response.add(0, chunk("b", logprob="b"), inference_pb2.ChatDelta(content="b"))
    response.add(0, chunk("c", STOP, logprob="c"), inference_pb2.ChatDelta(tool_calls=[call]))
    message = response.to_json()["output"][1]
    assert [entry["token"] for entry in message["content"][0]["logprobs"]] == ["b"]


def test_a_response_that_fails_says_why() -> None:
    (event,) = responses.ResponseStream(head()).failure(to_http(Unavailable("gone", reason="BURST")))
    assert event["type"] == "response.failed"
    assert event["response"]["error"] == {"code": "burst", "message": "gone"}


def generate_request(**fields: Any) -> inference_pb2.GenerateRequest | inference_pb2.ChatRequest:
    return generate.to_request(parse(GenerateBody, json.dumps({"model": "only", **fields}).encode()))


def test_a_prompt_or_a_conversation_is_generated_from() -> None:
    text = generate_request(prompt="a", max_tokens=3, logprobs=2)
    assert isinstance(text, inference_pb2.GenerateRequest)
    assert (text.model, text.text, text.params.max_tokens) == ("only", "a", 3)
    assert text.params.sampling.logprobs == 2
    ids = generate_request(model="demo", prompt=[1, 2])
    assert isinstance(ids, inference_pb2.GenerateRequest)
    assert (ids.model, list(ids.token_ids.ids)) == ("demo", [1, 2])
    chat = generate_request(messages=[{"role": "user", "content": "a"}])
    assert isinstance(chat, inference_pb2.ChatRequest)
    for fields in ({}, {"prompt": "a", "messages": []}):
        with pytest.raises(InvalidArgument, match="one of prompt and messages"):
            generate_request(**fields)


def test_a_chunk_says_its_tokens_and_its_event() -> None:
    queued = tokens_pb2.TokenChunk(queued=tokens_pb2.Queued(position=2, expected_wait_ms=5))
    assert generate.chunk_json(queued) == {"queued": {"position": 2, "expected_wait_ms": 5.0}}
    assert generate.chunk_json(tokens_pb2.TokenChunk()) == {}
    found = tokens_pb2.Started(
        worker_id="w", cached_prompt_tokens=3, cached_prompt_tier=generation_pb2.CACHE_TIER_HOST
    )
    assert generate.chunk_json(tokens_pb2.TokenChunk(started=found)) == {
        "started": {"cached_prompt_tokens": 3, "cached_prompt_tier": "host"}
    }
    last = generate.chunk_json(chunk("a", LENGTH, logprob="a"))
    assert (last["finish_reason"], last["usage"]["total_tokens"]) == ("length", 7)
    assert last["logprobs"][0]["token"] == "a"


def test_chunks_add_up_to_one_object() -> None:
    answer = generate.ChunkAnswer()
    answer.add(0, chunk("a", logprob="a"))
    answer.add(0, chunk("b", STOP, logprob="b"))
    said = answer.to_json()
    assert (said["text"], said["token_ids"], said["finish_reason"]) == ("ab", [1, 1], "stop")
    assert len(said["logprobs"]) == 2


def test_the_documents_have_every_operation_and_resolve() -> None:
    made = document()
    assert {(o.path, o.method) for o in OPERATIONS} == {(p, m) for p, ms in made["paths"].items() for m in ms}
    text = json.dumps(made)
    names = set(made["components"]["schemas"])
    assert all(part.split('"')[0] in names for part in text.split("#/components/schemas/")[1:])


def test_calls_and_their_outputs_become_messages() -> None:
    items = [
        {"role": "user", "content": "a"},
        {
            "type": "reasoning",
            "id": "r",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "y"}]},
    ]
    asked, said, first, second = request(input=items).messages
    assert (asked.role, asked.content) == ("user", "a")
    assert (said.role, said.content, said.reasoning_content) == ("assistant", "b", "hm")
    assert [(call.id, call.name) for call in said.tool_calls] == [("1", "f"), ("2", "g")]
    assert (first.role, first.tool_call_id, first.content) == ("tool", "1", "x")
    assert (second.tool_call_id, second.content) == ("2", "y")


def test_reasoning_text_and_calls_are_items_one_after_the_other() -> None:
    call = inference_pb2.ToolCallDelta
    deltas = [
        inference_pb2.ChatDelta(reasoning_content="hm"),
        inference_pb2.ChatDelta(content="b"),
        inference_pb2.ChatDelta(tool_calls=[call(index=0, id="c1", name="f", arguments="{")]),
        inference_pb2.ChatDelta(tool_calls=[call(index=0, arguments="}"), call(index=1, id="c2", name="g")]),
        inference_pb2.ChatDelta(tool_calls=[call(index=1, arguments="{}")]),
    ]
    stream = responses.ResponseStream(head())
    events = []
    for delta in deltas:
        events += stream.messages(0, chunk("raw"), delta)
    events += stream.messages(0, chunk("", STOP), inference_pb2.ChatDelta())
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    whole = events[-1]["response"]
    assert whole["output"] == done
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call", "function_call"]
    assert done[0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert done[1]["content"][0]["text"] == "b"
    assert [(item["call_id"], item["name"], item["arguments"]) for item in done[2:]] == [
        ("c1", "f", "{}"),
        ("c2", "g", "{}"),
    ]
    assert len({item["id"] for item in done}) == 4
    kinds = [event["type"] for event in events if event.get("output_index") == 2]
    assert kinds == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]


HOSTED = [
    {"type": "web_search", "filters": {"allowed_domains": ["a.org"]}},
    {"type": "function", "name": "f", "parameters": {"type": "object"}},
    {"type": "mcp", "server_label": "x", "server_url": "https://x"},
    {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}},
    {"type": "local_shell"},
    {"type": "namespace", "name": "n", "description": "d", "tools": []},
    {"type": "function", "name": "g"},
]


def test_hosted_tools_are_skipped_and_the_answer_says_so() -> None:
    asked = body(tools=HOSTED, metadata={"a": "b"})
    assert [tool.name for tool in responses.to_request(asked).tools] == ["f", "g"]
    said = responses.ResponseHead("1", 7, asked).to_json("in_progress", [])
    skipped = "custom, local_shell, mcp, namespace, web_search"
    assert said["metadata"] == {"a": "b", "inferflux_skipped_tools": skipped}
    error = in_words_of(InvalidArgument("x", field="tools[1].name"), responses.field_names(asked))
    assert isinstance(error, InvalidArgument)
    assert error.field == "tools[6].name"


def test_hosted_tools_alone_leave_no_choice() -> None:
    made = request(tools=[{"type": "web_search"}], tool_choice="auto")
    assert not made.tools
    assert not made.HasField("tool_choice")


def test_what_codex_sends_becomes_one_conversation() -> None:
    """As Codex CLI puts a turn together, with what hosted tools left in it."""
    text = {"type": "input_text"}
    made = request(
        instructions="You are Codex.",
        input=[
            {"type": "message", "role": "developer", "content": [{**text, "text": "Sandboxed."}]},
            {"type": "message", "role": "user", "content": [{**text, "text": "List files."}]},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "ls"}],
                "content": None,
                "encrypted_content": None,
            },
            {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
            {"type": "function_call", "name": "shell", "arguments": '{"command": ["ls', "call_id": "c1"},
            {"type": "function_call_output", "call_id": "c1", "output": [{**text, "text": "a.txt"}]},
            {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin", "call_id": "c2"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
            {"type": "local_shell_call", "call_id": "c3", "action": {"type": "exec", "command": ["ls"]}},
            {"type": "local_shell_call_output", "id": "c3", "output": "a.txt"},
        ],
        tools=HOSTED,
        tool_choice="auto",
        parallel_tool_calls=False,
        reasoning={"effort": None, "summary": "auto"},
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
        text={"verbosity": "low"},
        client_metadata={"a": "b"},
    )
    roles = ["developer", "user", "assistant", "tool", "assistant", "tool", "assistant", "tool"]
    assert [message.role for message in made.messages] == roles
    assert made.messages[0].content == "You are Codex.\n\nSandboxed."
    assert made.messages[2].reasoning_content == "ls"
    called = [message.tool_calls[0] for message in made.messages if message.tool_calls]
    assert [(call.id, call.name) for call in called] == [
        ("c1", "shell"),
        ("c2", "apply_patch"),
        ("c3", "local_shell"),
    ]
    assert json.loads(called[1].arguments) == {"input": "*** Begin"}
