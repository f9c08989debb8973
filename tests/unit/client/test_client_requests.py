"""What the arguments of a client's calls become."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferflux.client import InvalidArgument
from inferflux.client.requests import (
    Options,
    Prompt,
    chat_request,
    generate_request,
    generation_params,
    tokenize_request,
)
from inferflux.v1 import generation_pb2, inference_pb2

CALL: dict[str, Any] = {"model": "m", "priority": 1, "resume_window_s": 9, "skip_answer_cache": True}


def test_a_text_is_a_message_of_the_user_and_mappings_are_messages() -> None:
    one = chat_request("Hi", options={}, **CALL)
    assert one.messages[0] == inference_pb2.ChatMessage(role="user", content="Hi")
    assert (one.model, one.priority, one.resume_window_s, one.skip_answer_cache) == ("m", 1, 9, True)
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


def test_every_option_is_a_field_of_the_messages() -> None:
    known = {
        *generation_pb2.SamplingParams.DESCRIPTOR.fields_by_name,
        *generation_pb2.GenerationParams.DESCRIPTOR.fields_by_name,
    }
    assert set(Options.__annotations__) - {"params", "json_schema", "regex", "choices"} <= known


@pytest.mark.parametrize(
    ("options", "kind", "value"),
    [
        ({"json_schema": {"type": "object"}}, "json_schema", json.dumps({"type": "object"})),
        ({"json_schema": "{}"}, "json_schema", "{}"),
        ({"regex": "[0-9]+"}, "regex", "[0-9]+"),
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
