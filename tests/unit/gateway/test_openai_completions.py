"""Bodies of completions, tokenize and detokenize to requests, and token chunks to OpenAI's messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.openai import completions, tokens
from inferflux.gateway.http.openai.answers import Head
from inferflux.gateway.http.openai.bodies import CompletionBody, StreamOptions
from inferflux.gateway.http.openai.text_bodies import DetokenizeBody, TokenizeBody
from inferflux.gateway.http.paths.reading import parse
from inferflux.v1 import generation_pb2, inference_pb2, tokens_pb2

HEAD = Head("cmpl-1", "demo", 7)


def requests(**fields: Any) -> list[inference_pb2.GenerateRequest]:
    made = {"model": "demo", "prompt": "once"} | fields
    return completions.to_requests(parse(CompletionBody, json.dumps(made).encode()))


def shape(*echoes: str, n: int = 1, has_logprobs: bool = False) -> completions.Shape:
    return completions.Shape(HEAD, echoes=echoes or [""], n=n, has_logprobs=has_logprobs)


def chunk(text: str, *, logprobs: list[str] | None = None, is_last: bool = False) -> tokens_pb2.TokenChunk:
    made = tokens_pb2.TokenChunk(token_ids=[1], text=text)
    for token in logprobs or []:
        one = made.logprobs.add()
        one.chosen.text, one.chosen.logprob = token, -1.0
        one.top.add(text=token, logprob=-1.0)
    if is_last:
        made.finished.reason = generation_pb2.FINISH_REASON_LENGTH
        made.finished.usage.CopyFrom(
            generation_pb2.Usage(prompt_tokens=5, cached_prompt_tokens=3, completion_tokens=2)
        )
    return made


def test_a_prompt_is_a_text_or_token_ids_or_several_of_them() -> None:
    assert [r.text for r in requests()] == ["once"]
    assert [r.text for r in requests(prompt=["a", "b"])] == ["a", "b"]
    assert [list(r.token_ids.ids) for r in requests(prompt=[1, 2])] == [[1, 2]]
    assert [list(r.token_ids.ids) for r in requests(prompt=[[1], [2, 3]])] == [[1], [2, 3]]


@pytest.mark.parametrize("prompt", [[], None, [1, "a"], {"a": 1}, [[1], "a"], [True], [2**40]])
def test_a_prompt_of_another_shape_is_refused(prompt: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        requests(prompt=prompt)
    assert caught.value.field.startswith("prompt")


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ["a"] * 100_000},
        {"prompt": [[1]] * 65, "n": 2},
        {"prompt": ["a", "b"], "stop": ["x" * 70_000]},
        {"prompt": ["a", "b"], "structured_outputs": {"regex": "a" * 70_000}},
    ],
)
def test_prompts_are_refused_that_would_each_take_a_copy_of_much(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        requests(**fields)
    assert caught.value.field


def test_an_answer_has_sixteen_tokens_where_nothing_is_said() -> None:
    assert requests()[0].params.max_tokens == 16
    assert requests(max_tokens=3)[0].params.max_tokens == 3


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"best_of": 2}, "best_of"),
        ({"echo": True, "suffix": "b"}, "suffix"),
        ({"prompt": [1, 2], "suffix": "b"}, "suffix"),
    ],
)
def test_a_value_that_is_not_served_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        requests(**fields)
    assert (caught.value.field, caught.value.reason) == (field, "UNSUPPORTED_VALUE")


def test_best_of_as_many_as_are_given_passes() -> None:
    assert len(requests(best_of=2, n=2)) == 1


def test_an_echo_precedes_the_text_once() -> None:
    stream = completions.CompletionStream(shape("once "))
    messages = [m for c in (chunk("upon "), chunk("a", is_last=True)) for m in stream.messages(0, c)]
    assert [m["choices"][0]["text"] for m in messages] == ["once upon ", "a"]
    assert [m["choices"][0]["finish_reason"] for m in messages] == [None, "length"]
    answer = completions.CompletionAnswer(shape("once "))
    answer.add(0, chunk("upon"))
    assert answer.to_json()["choices"][0]["text"] == "once upon"


def test_choices_of_prompts_are_numbered_together_and_each_prompt_counts_once() -> None:
    answer = completions.CompletionAnswer(shape("a:", "b:", n=2))
    for index in range(4):
        answer.add(index, chunk(str(index), is_last=True))
    said = answer.to_json()
    assert [choice["text"] for choice in said["choices"]] == ["a:0", "a:1", "b:2", "b:3"]
    assert said["usage"]["prompt_tokens"] == 10
    assert said["usage"]["completion_tokens"] == 8
    assert said["usage"]["prompt_tokens_details"] == {"cached_tokens": 6}


def test_log_probabilities_say_where_each_token_begins() -> None:
    answer = completions.CompletionAnswer(shape(has_logprobs=True))
    answer.add(0, chunk("", logprobs=["he"]))
    answer.add(0, chunk("hello", logprobs=["llo"], is_last=True))
    assert answer.to_json()["choices"][0]["logprobs"] == {
        "tokens": ["he", "llo"],
        "token_logprobs": [-1.0, -1.0],
        "top_logprobs": [{"he": -1.0}, {"llo": -1.0}],
        "text_offset": [0, 2],
    }


def test_a_stream_ends_with_the_usage_where_it_is_wanted() -> None:
    stream = completions.CompletionStream(shape(), options=StreamOptions(include_usage=True))
    (message,) = stream.messages(0, chunk("a", is_last=True))
    assert message["usage"] is None
    assert stream.last()[0]["usage"]["total_tokens"] == 7
    assert completions.CompletionStream(shape()).last() == []


def test_a_token_without_text_says_nothing_yet() -> None:
    stream = completions.CompletionStream(shape())
    assert stream.messages(0, chunk("")) == []


def tokenize(**fields: Any) -> inference_pb2.TokenizeRequest:
    return tokens.to_tokenize(parse(TokenizeBody, json.dumps({"model": "demo"} | fields).encode()))


def test_a_text_or_a_conversation_is_tokenized() -> None:
    assert tokenize(prompt="a").text == "a"
    said = tokenize(messages=[{"role": "user", "content": "a"}]).conversation.messages
    assert [(m.role, m.content) for m in said] == [("user", "a")]
    for fields in ({}, {"prompt": "a", "messages": []}):
        with pytest.raises(InvalidArgument, match="one of prompt and messages"):
            tokenize(**fields)


def test_tokens_are_counted() -> None:
    answer = inference_pb2.TokenizeResponse(token_ids=[1, 2], context_length=9)
    assert tokens.of_tokenize(answer) == {"count": 2, "max_model_len": 9, "tokens": [1, 2]}


def test_ids_are_numbers() -> None:
    body = parse(DetokenizeBody, b'{"model": "demo", "tokens": [1, 2]}')
    assert list(tokens.to_detokenize(body).token_ids) == [1, 2]
    with pytest.raises(InvalidArgument) as caught:
        parse(DetokenizeBody, b'{"model": "demo", "tokens": ["a"]}')
    assert caught.value.field == "tokens[0]"
