"""Bodies of Ollama's API to requests, token chunks to its lines, and models as it lists them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ollama import ChatResponse, GenerateResponse, ListResponse, ProcessResponse, ShowResponse

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.errors.errors import in_words_of
from inferflux.gateway.http.errors.shapes import to_ollama
from inferflux.gateway.http.front.bodies import parse
from inferflux.gateway.http.ollama import models, request
from inferflux.gateway.http.ollama.answer import Head, LineStream, WholeAnswer, chat_says, generate_says
from inferflux.gateway.http.ollama.bodies import (
    OllamaChatBody,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaGenerateBody,
)
from inferflux.gateway.http.openai.served import OLLAMA
from inferflux.v1 import generation_pb2, inference_pb2, model_pb2, tokens_pb2

Chunk = tokens_pb2.TokenChunk
Delta = inference_pb2.ChatDelta
QUESTION = {"role": "user", "content": "hello"}
HEAD = Head("demo", lambda: 1.5)


def chat_body(**fields: Any) -> OllamaChatBody:
    return parse(OllamaChatBody, json.dumps({"model": "demo", "messages": [QUESTION]} | fields).encode())


def chat(**fields: Any) -> inference_pb2.ChatRequest:
    return request.chat_request(chat_body(**fields))


def generate(**fields: Any) -> Any:
    given = {"model": "demo", "prompt": "hi"} | fields
    return request.generate_request(parse(OllamaGenerateBody, json.dumps(given).encode()))


def test_options_are_sampling_under_ollamas_names() -> None:
    options = {
        "num_predict": 7,
        "temperature": 1,
        "top_k": 3,
        "top_p": 0.5,
        "min_p": 0.25,
        "seed": 4,
        "stop": ["a"],
        "repeat_penalty": 1.25,
        "repeat_last_n": -1,
        "num_ctx": 9000,
        "num_gpu": 3,
        "use_mmap": True,
    }
    params = chat(options=options).params
    sampling = params.sampling
    assert (params.max_tokens, list(params.stop)) == (7, ["a"])
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (1, 3, 0.5, 0.25)
    assert (sampling.seed, sampling.repeat_penalty, sampling.penalty_last_n) == (4, 1.25, -1)


@pytest.mark.parametrize("is_raw", [False, True])
def test_fields_of_ours_are_options_or_beside_them(*, is_raw: bool) -> None:
    own = {"deterministic": True, "min_tokens": 3, "min_p": 0.25, "priority": 3, "adapter": "a"}
    made = generate(raw=is_raw, **own)
    assert made == generate(raw=is_raw, options=own)
    assert made == generate(raw=is_raw, options=own, **{**own, "min_p": 0.5, "deterministic": False})
    assert (made.priority, made.adapter, made.params.min_tokens) == (3, "a", 3)
    assert made.params.deterministic
    for fields, outer in (({"min_p": 2.0}, "min_p"), ({"options": {"min_p": 2.0}}, "options.min_p")):
        names = request.field_names(chat_body(**fields))
        told = in_words_of(InvalidArgument("no", field="params.sampling.min_p"), names)
        assert isinstance(told, InvalidArgument)
        assert told.field == outer


def test_negative_seeds_and_lengths_are_none() -> None:
    params = chat(options={"seed": -1, "num_predict": -1}).params
    assert not params.sampling.HasField("seed")
    assert not params.HasField("max_tokens")


def test_a_name_may_have_the_tag_that_means_the_latest() -> None:
    assert [chat(model=name).model for name in ("demo:latest", "demo", "demo:german")] == [
        "demo",
        "demo",
        "demo:german",
    ]


def test_a_format_is_a_constraint() -> None:
    assert chat(format="json").params.constraint.json_object
    schema = {"type": "object"}
    assert json.loads(chat(format=schema).params.constraint.json_schema) == schema
    assert not chat(format="").params.HasField("constraint")


@pytest.mark.parametrize(
    ("think", "switch", "effort"),
    [(True, True, ""), (False, False, ""), ("low", True, "low"), (None, None, "")],
)
def test_thinking_is_a_switch_of_the_template(think: Any, switch: bool | None, effort: str) -> None:
    made = chat(think=think)
    found = json.loads(made.chat_template_kwargs) if made.chat_template_kwargs else {}
    assert found == ({} if switch is None else {"enable_thinking": switch})
    assert (made.reasoning_effort, made.has_optional_switches) == (effort, True)


def test_results_answer_calls_in_their_order_or_by_name() -> None:
    calls = [{"function": {"name": name, "arguments": {"at": "é"}}} for name in ("look", "go", "look")]
    said = [
        QUESTION,
        {"role": "assistant", "thinking": "hm", "tool_calls": calls},
        {"role": "tool", "content": "1", "tool_name": "go"},
        {"role": "tool", "content": "2"},
        {"role": "tool", "content": "3", "tool_call_id": "own"},
        {"role": "tool", "content": "4", "tool_name": "unknown"},
    ]
    made = chat(messages=said).messages
    assert [(call.id, call.name, call.arguments) for call in made[1].tool_calls] == [
        ("call_0", "look", '{"at": "é"}'),
        ("call_1", "go", '{"at": "é"}'),
        ("call_2", "look", '{"at": "é"}'),
    ]
    assert made[1].reasoning_content == "hm"
    assert [each.tool_call_id for each in made[2:]] == ["call_1", "call_0", "own", ""]


def test_a_prompt_is_a_message_and_a_raw_one_a_text() -> None:
    made = generate(system="s", images=["aGk="])
    assert [(each.role, each.content) for each in made.messages] == [("system", "s"), ("user", "")]
    assert [part.WhichOneof("part") for part in made.messages[1].parts] == ["text", "image"]
    between = generate(suffix="b")
    assert (between.text, between.suffix) == ("hi", "b")
    raw = generate(raw=True, options={"num_predict": 3})
    assert (raw.text, raw.params.max_tokens) == ("hi", 3)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"context": [1, 2]}, "context"),
        ({"suffix": "b", "images": ["aGk="]}, "images"),
        ({"raw": True, "system": "s"}, "system"),
        ({"format": "xml"}, "format"),
        ({"think": "hard"}, "think"),
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"options": {"deterministic": 1}}, "options.deterministic"),
        *(({name: "x"}, name) for name in OLLAMA),
    ],
)
def test_what_is_not_served_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        generate(**fields)
    assert caught.value.field == field
    assert field in to_ollama(caught.value, "").body["error"]


def test_errors_name_what_the_client_sent() -> None:
    body = chat_body(messages=[QUESTION, {"role": "user", "content": "a", "images": ["aGk="]}])
    names = request.field_names(body)
    for inner, outer in {
        "messages[1].parts[1].image": "messages[1].images[0]",
        "params.sampling.temperature": "options.temperature",
        "params.max_tokens": "options.num_predict",
    }.items():
        told = in_words_of(InvalidArgument("no", field=inner), names)
        assert isinstance(told, InvalidArgument)
        assert told.field == outer


def test_texts_to_embed_are_cut_unless_that_is_not_wanted() -> None:
    newer = request.embed_request(OllamaEmbedBody(model="m:latest", input=["a", "b"], truncate=False))
    older = request.embed_request(OllamaEmbeddingsBody(model="m", prompt="a"))
    assert (newer.model, [each.text for each in newer.inputs], newer.truncate) == ("m", ["a", "b"], False)
    assert ([each.text for each in older.inputs], older.truncate) == (["a"], True)


def end() -> Chunk:
    usage = generation_pb2.Usage(prompt_tokens=10, completion_tokens=3)
    timings = generation_pb2.Timings(queue_ms=1, prefill_ms=2, decode_ms=3.5)
    finished = tokens_pb2.Finished(reason=generation_pb2.FINISH_REASON_STOP, usage=usage, timings=timings)
    return Chunk(finished=finished)


def script() -> list[tuple[Chunk, Delta]]:
    parts = [
        inference_pb2.ToolCallDelta(index=0, id="c1", name="look"),
        inference_pb2.ToolCallDelta(index=0, arguments='{"at": '),
        inference_pb2.ToolCallDelta(index=0, arguments='"sea"}'),
        inference_pb2.ToolCallDelta(index=1, id="c2", name="go", arguments="{}"),
    ]
    said = [Delta(reasoning_content="hm"), Delta(content="a"), *(Delta(tool_calls=[part]) for part in parts)]
    return [*((Chunk(token_ids=[i]), delta) for i, delta in enumerate(said)), (end(), Delta())]


CALLS = [
    {"id": "c1", "function": {"index": 0, "name": "look", "arguments": {"at": "sea"}}},
    {"id": "c2", "function": {"index": 1, "name": "go", "arguments": {}}},
]


def test_a_stream_is_lines_and_each_call_is_whole() -> None:
    stream = LineStream(HEAD, chat_says, has_logprobs=False)
    lines = [line for chunk, delta in script() for line in stream.messages(0, chunk, delta)]
    for line in lines:
        ChatResponse.model_validate(line)
    assert [line["message"] for line in lines] == [
        {"role": "assistant", "content": "", "thinking": "hm"},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": CALLS[:1]},
        {"role": "assistant", "content": "", "tool_calls": CALLS[1:]},
        {"role": "assistant", "content": ""},
    ]
    assert [line["done"] for line in lines] == [False] * 4 + [True]
    assert lines[0]["created_at"] == "1970-01-01T00:00:01.500000Z"
    assert {
        key: value for key, value in lines[-1].items() if key not in ("model", "created_at", "message")
    } == {
        "done": True,
        "done_reason": "stop",
        "total_duration": 6_500_000,
        "load_duration": 1_000_000,
        "prompt_eval_count": 10,
        "prompt_eval_duration": 2_000_000,
        "eval_count": 3,
        "eval_duration": 3_500_000,
    }


def test_a_whole_answer_says_what_its_lines_say() -> None:
    answer = WholeAnswer(HEAD, chat_says, has_logprobs=False)
    for chunk, delta in script():
        answer.add(0, chunk, delta)
    made = answer.to_json()
    ChatResponse.model_validate(made)
    assert made["message"] == {"role": "assistant", "content": "a", "thinking": "hm", "tool_calls": CALLS}
    assert (made["done"], made["eval_count"]) == (True, 3)


def test_a_continuation_is_a_response() -> None:
    answer = WholeAnswer(HEAD, generate_says, has_logprobs=False)
    for chunk in (Chunk(token_ids=[1], text="a"), Chunk(token_ids=[2], text="b"), end()):
        answer.add(0, chunk, None)
    made = GenerateResponse.model_validate(answer.to_json())
    assert (made.response, made.done_reason) == ("ab", "stop")
    assert HEAD.empty(generate_says, "load")["done_reason"] == "load"


def test_models_are_listed_with_their_adapters_and_described() -> None:
    card = model_pb2.ModelCard(
        name="demo",
        digest="d",
        architecture="llama",
        parameters=134_500_000,
        size_bytes=9,
        context_length=512,
        quantization="Q4_1",
        can_call_tools=True,
        takes_images=True,
        role=model_pb2.MODEL_ROLE_GENERATION,
        adapters=[model_pb2.AdapterCard(name="german", digest="a")],
    )
    model = model_pb2.Model(card=card)
    listed = ListResponse.model_validate({"models": [*models.tags_json(model, 7)]}).models
    assert [(each.model, each.digest) for each in listed] == [("demo:latest", "d"), ("demo:german", "a")]
    assert listed[0].details is not None
    assert listed[0].details.parameter_size == "134.5M"
    running = ProcessResponse.model_validate({"models": [*models.running_json(model, 7)]}).models
    assert [each.context_length for each in running] == [512, 512]
    shown = ShowResponse.model_validate(models.show_json(model, 7))
    assert shown.capabilities == ["completion", "tools", "vision"]
    assert shown.modelinfo is not None
    assert shown.modelinfo["llama.context_length"] == 512
    card.role = model_pb2.MODEL_ROLE_EMBEDDING
    assert models.show_json(model_pb2.Model(card=card), 7)["capabilities"] == ["embedding"]
