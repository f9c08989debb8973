"""What the arguments of a client's calls become."""

from __future__ import annotations

import inspect
import json
from typing import Any, cast

import pytest
from google.protobuf.descriptor import FieldDescriptor

from inferflux.client import Client, InvalidArgument
from inferflux.client.requests import (
    Options,
    Prompt,
    chat_request,
    generate_request,
    generation_params,
    tokenize_request,
)
from inferflux.v1 import generation_pb2, inference_pb2

CALL: dict[str, Any] = {
    "model": "m",
    "priority": 1,
    "resume_window_s": 9,
    "skip_answer_cache": True,
    "adapter": "a",
}


def test_a_text_is_a_message_of_the_user_and_mappings_are_messages() -> None:
    one = chat_request("Hi", options={}, **CALL)
    assert one.messages[0] == inference_pb2.ChatMessage(role="user", content="Hi")
    assert (one.model, one.priority, one.resume_window_s, one.skip_answer_cache, one.adapter) == (
        "m",
        1,
        9,
        True,
        "a",
    )
    system = inference_pb2.ChatMessage(role="system", content="Be brief.")
    both = chat_request([system, {"role": "user", "content": "Hi"}], options={}, **CALL)
    assert [message.role for message in both.messages] == ["system", "user"]


@pytest.mark.parametrize(("prompt", "field"), [("Hi", "text"), (b"Hi", "text_bytes"), ([1, 2], "token_ids")])
def test_a_prompt_is_a_text_its_bytes_or_token_ids(prompt: Prompt, field: str) -> None:
    assert generate_request(prompt, options={}, **CALL).WhichOneof("prompt") == field


def test_a_text_is_tokenized_as_generate_would_and_messages_as_chat_would() -> None:
    assert tokenize_request("Hi", model="m").text == "Hi"
    conversation = tokenize_request([{"role": "user", "content": "Hi"}], model="m").conversation
    assert conversation.messages[0].content == "Hi"


def test_options_are_added_to_params() -> None:
    base = generation_pb2.GenerationParams(max_tokens=5, stop=["\n"])
    base.sampling.top_k = 3
    params = generation_params(
        {"params": base, "max_tokens": 7, "temperature": 0.0, "seed": 1, "logit_bias": {4: -1.0}}
    )
    assert (params.max_tokens, list(params.stop), params.sampling.top_k) == (7, ["\n"], 3)
    assert params.sampling.HasField("temperature")
    assert (params.sampling.temperature, params.sampling.seed) == (0.0, 1)
    assert dict(params.sampling.logit_bias) == {4: -1.0}
    assert base.max_tokens == 5


def test_the_source_of_drafts_has_the_name_that_http_gives_it() -> None:
    assert generation_params({"speculation": "ngram"}).speculation == generation_pb2.SPECULATION_NGRAM
    assert generation_params({}).speculation == generation_pb2.SPECULATION_UNSPECIFIED


def test_every_field_of_sampling_and_every_constraint_of_clients_is_an_option() -> None:
    sampling, params, constraint = (
        set(message.DESCRIPTOR.fields_by_name)
        for message in (
            generation_pb2.SamplingParams,
            generation_pb2.GenerationParams,
            generation_pb2.StructuredConstraint,
        )
    )
    constraints = constraint - {"choice", "tool_calls", "syntax", "reasoning", "prefix", "checked_schema"} | {
        "choices"
    }
    expected = sampling | params - {"sampling", "constraint", "banned"} | constraints | {"params"}
    assert set(Options.__annotations__) == expected


def test_every_field_of_a_chat_is_an_argument() -> None:
    arguments = set(inspect.signature(Client.chat).parameters)
    fields = set(inference_pb2.ChatRequest.DESCRIPTOR.fields_by_name)
    assert fields - {"params"} <= arguments
    asked = chat_request("Hi", options={}, parallel_tool_calls=False, **CALL)
    assert asked.HasField("parallel_tool_calls")
    assert not asked.parallel_tool_calls


def test_each_sampler_arrives_in_its_field() -> None:
    of_kind = {FieldDescriptor.CPPTYPE_FLOAT: 0.5, FieldDescriptor.CPPTYPE_MESSAGE: ["x"]}
    for field in generation_pb2.SamplingParams.DESCRIPTOR.fields:
        value = {4: 0.5} if field.name == "logit_bias" else of_kind.get(field.cpp_type, 3)
        params = generation_params(cast("Options", {field.name: value}))
        assert [(one.name) for one, _ in params.sampling.ListFields()] == [field.name]


def test_breakers_take_the_place_of_those_of_params() -> None:
    base = generation_pb2.GenerationParams()
    base.sampling.dry_sequence_breakers.texts.append(":")
    none = generation_params({"params": base, "dry_sequence_breakers": []}).sampling
    assert none.HasField("dry_sequence_breakers")
    assert not none.dry_sequence_breakers.texts
    assert generation_params({"params": base}).sampling.dry_sequence_breakers.texts == [":"]


def test_a_text_alone_is_a_list_of_one() -> None:
    params = generation_params({"stop": "END", "choices": "yes", "dry_sequence_breakers": "--"})
    assert list(params.stop) == ["END"]
    assert list(params.constraint.choice.texts) == ["yes"]
    assert list(params.sampling.dry_sequence_breakers.texts) == ["--"]


@pytest.mark.parametrize(
    ("options", "kind", "value"),
    [
        ({"json_schema": {"type": "object"}}, "json_schema", json.dumps({"type": "object"})),
        ({"json_schema": "{}"}, "json_schema", "{}"),
        ({"regex": "[0-9]+"}, "regex", "[0-9]+"),
        ({"json_object": True}, "json_object", True),
        ({"gbnf": 'root ::= "a"'}, "gbnf", 'root ::= "a"'),
        ({"lark": 'start: "a"'}, "lark", 'start: "a"'),
        ({"choices": ["a", "b"]}, "choice", generation_pb2.ChoiceConstraint(texts=["a", "b"])),
    ],
)
def test_a_constraint_is_one_of_its_kinds(options: Options, kind: str, value: object) -> None:
    constraint = generation_params(options).constraint
    assert constraint.WhichOneof("constraint") == kind
    assert getattr(constraint, kind) == value


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"temperature": "warm"}, "params.sampling.temperature"),
        ({"seed": -1}, "params.sampling.seed"),
        ({"max_tokens": 2**40}, "params.max_tokens"),
        ({"temprature": 0.1}, "temprature"),
        ({"speculation": "fast"}, "speculation"),
        ({"speculation": 2}, "speculation"),
        ({"regex": "a", "choices": ["b"]}, "constraint"),
        ({"json_schema": {"enum": [object()]}}, "json_schema"),
        ({"choices": [1]}, "choices"),
        ({"gbnf": 1}, "gbnf"),
        ({"stop": 5}, "params.stop"),
        ({"dry_sequence_breakers": 5}, "params.sampling.dry_sequence_breakers"),
    ],
)
def test_what_no_message_can_hold_is_refused_by_name(options: Options, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        generation_params(options)
    assert caught.value.field == field


def test_a_message_with_an_unknown_field_is_refused_by_its_place() -> None:
    with pytest.raises(InvalidArgument) as caught:
        chat_request([{"role": "user"}, {"rule": "user"}], options={}, **CALL)
    assert caught.value.field == "messages[1].rule"
    with pytest.raises(InvalidArgument) as caught:
        chat_request("Hi", options={}, **(CALL | {"resume_window_s": -1}))
    assert caught.value.field == "resume_window_s"


def test_a_message_has_images_among_its_parts() -> None:
    message = {"role": "user", "parts": [{"text": "What is this?"}, {"image": {"data": b"file"}}]}
    (made,) = chat_request([message], options={}, **CALL).messages
    assert [part.WhichOneof("part") for part in made.parts] == ["text", "image"]
    assert made.parts[1].image.data == b"file"
