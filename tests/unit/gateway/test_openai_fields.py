"""Fields of other servers: served under their names, refused by them, or without effect; none is ignored."""

from __future__ import annotations

from typing import Any

import pytest
from harness.deploy import ROOT

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.errors.errors import in_words_of
from inferflux.gateway.http.front.exchange import to_json
from inferflux.gateway.http.openai import chat, completions, fields
from inferflux.gateway.http.openai.bodies import ChatBody, CompletionBody
from inferflux.gateway.http.paths.reading import parse
from inferflux.v1 import generation_pb2, inference_pb2

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def body(**given: Any) -> ChatBody:
    return parse(ChatBody, to_json({"messages": [{"role": "user", "content": "a"}], **given}))


def ask(**given: Any) -> inference_pb2.ChatRequest:
    return chat.to_request(body(**given))


def complete(**given: Any) -> inference_pb2.GenerateRequest:
    (made,) = completions.to_requests(parse(CompletionBody, to_json({"prompt": "a", **given})))
    return made


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"n_predict": 5}, {"max_tokens": 5}),
        ({"max_new_tokens": 5}, {"max_tokens": 5}),
        ({"n_predict": 5, "max_tokens": 6}, {"max_tokens": 6}),
        ({"repeat_last_n": 7}, {"penalty_last_n": 7}),
        ({"typical": 0.5}, {"typical_p": 0.5}),
        ({"random_seed": 3}, {"seed": 3}),
        ({"stop_sequences": ["x"]}, {"stop": ["x"]}),
        ({"grammar": 'root ::= "a"'}, {"structured_outputs": {"grammar": 'root ::= "a"'}}),
        ({"grammar": ""}, {}),
        ({"json_schema": SCHEMA}, {"structured_outputs": {"json": SCHEMA}}),
        ({"guided_json": SCHEMA}, {"structured_outputs": {"json": SCHEMA}}),
        ({"guided_regex": "a+"}, {"structured_outputs": {"regex": "a+"}}),
        ({"guided_choice": ["a", "b"]}, {"structured_outputs": {"choice": ["a", "b"]}}),
        ({"guided_grammar": 'root ::= "a"'}, {"structured_outputs": {"grammar": 'root ::= "a"'}}),
        ({"format": "json"}, {"structured_outputs": {"json_object": True}}),
        ({"format": SCHEMA}, {"structured_outputs": {"json": SCHEMA}}),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, {"guided_json": SCHEMA}),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, {"guided_json": SCHEMA}),
        ({"n_probs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"seed": -1}, {}),
        ({"max_tokens": -1}, {}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_p": 0}, {"top_p": 1}),
        ({"stop": ""}, {}),
        ({"stop": ["", "x"]}, {"stop": ["x"]}),
        ({"repetition_penalty": 1.5}, {"repeat_penalty": 1.5, "penalty_last_n": -1}),
        ({"logit_bias": [[5, 1.5]]}, {"logit_bias": {"5": 1.5}}),
        ({"logit_bias": [[5, False]]}, {"logit_bias": {"5": -100}}),
        ({"service_tier": "scale"}, {"service_tier": "default"}),
    ],
)
def test_a_field_of_another_server_is_served_under_its_name(
    theirs: dict[str, Any], ours: dict[str, Any]
) -> None:
    assert ask(**theirs) == ask(**ours)


def test_a_completion_has_as_many_alternatives_as_n_probs_says() -> None:
    assert complete(n_probs=3) == complete(logprobs=3)


def test_texts_are_biased_too() -> None:
    for given in ([["yes", 2.0]], {"yes": 2.0}):
        params = ask(logit_bias=given).params
        assert list(params.text_bias) == [generation_pb2.TextBias(text="yes", bias=2.0)]


@pytest.mark.parametrize("given", [[5], [[5]], [["", 1]], [[5, True]], [[5, "x"]], [[-5, 1]], [[None, 1]]])
def test_a_bias_that_is_no_pair_of_a_token_and_a_number_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        ask(logit_bias=given)
    assert caught.value.field == "logit_bias"


@pytest.mark.parametrize("name", sorted(fields.REFUSED))
def test_what_changes_an_answer_and_is_not_served_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        body(**{name: {"something": "else"}})
    assert caught.value.field == name
    assert caught.value.message.startswith(name)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, served in fields.REFUSED.items() for value in served.values]
)
def test_a_value_that_leaves_answers_as_they_are_is_taken(name: str, value: Any) -> None:
    assert ask(**{name: value}) == ask()


def test_numbers_are_equal_however_they_are_spelled() -> None:
    assert ask(tfs_z=1.0, length_penalty=1) == ask()
    with pytest.raises(InvalidArgument):
        ask(tfs_z=True)


@pytest.mark.parametrize("name", sorted(fields.WITHOUT_EFFECT))
def test_what_changes_no_answer_is_taken(name: str) -> None:
    assert ask(**{name: 7}) == ask()


@pytest.mark.parametrize("name", sorted(fields.OTHER_NAMES))
def test_null_is_as_good_as_absent(name: str) -> None:
    assert ask(**{name: None}) == ask()


@pytest.mark.parametrize(
    ("given", "inner", "field"),
    [
        ({"n_predict": 5}, "params.max_tokens", "n_predict"),
        ({"repetition_penalty": 5}, "params.sampling.repeat_penalty", "repetition_penalty"),
        ({"repeat_last_n": 5}, "params.sampling.penalty_last_n", "repeat_last_n"),
        ({"guided_json": SCHEMA}, "params.constraint.json_schema", "guided_json"),
        ({"json_schema": SCHEMA}, "params.constraint.json_schema", "json_schema"),
        ({"guided_choice": ["a"]}, "params.constraint.choice.texts[0]", "guided_choice[0]"),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            "params.constraint.json_schema",
            "response_format.schema",
        ),
    ],
)
def test_an_error_names_the_field_as_the_client_did(given: dict[str, Any], inner: str, field: str) -> None:
    error = InvalidArgument("wrong", field=inner)
    told = in_words_of(error, chat.field_names(body(**given)))
    assert isinstance(told, InvalidArgument)
    assert told.field == field


@pytest.mark.parametrize(
    ("given", "field"),
    [({"n_predict": "x"}, "n_predict"), ({"n_probs": "x"}, "n_probs"), ({"seed": "x"}, "seed")],
)
def test_a_wrong_type_names_the_field_as_the_client_did(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        body(**given)
    assert (refused.value.field, refused.value.message.partition(":")[0]) == (field, field)


def test_every_field_of_another_server_is_on_the_page() -> None:
    page = (ROOT / "docs/http.md").read_text()
    part = page.split("## Fields of other servers")[1].split("\n## ")[0]
    known = (*fields.OTHER_NAMES, *fields.REFUSED, *fields.WITHOUT_EFFECT)
    assert [name for name in known if f"`{name}`" not in part] == []
