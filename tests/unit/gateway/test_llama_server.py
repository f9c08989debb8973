"""Bodies and objects of llama.cpp's server."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from harness.projectors import picture

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.front.exchange import to_json
from inferflux.gateway.http.llama_server.bodies import CompletionBody, InfillBody
from inferflux.gateway.http.llama_server.completion import (
    CompletionAnswer,
    CompletionStream,
    field_names,
    to_completion,
    to_infill,
)
from inferflux.gateway.http.openai.answers import Head
from inferflux.gateway.http.paths.reading import parse
from inferflux.v1 import generation_pb2, tokens_pb2

STOP = generation_pb2.FINISH_REASON_STOP
LENGTH = generation_pb2.FINISH_REASON_LENGTH


def body(**fields: Any) -> CompletionBody:
    return parse(CompletionBody, to_json({"prompt": "a", **fields}))


def infill(**fields: Any) -> InfillBody:
    return parse(InfillBody, to_json({"input_prefix": "a", "input_suffix": "b", **fields}))


def test_a_completion_has_llama_cpps_names() -> None:
    [made] = to_completion(
        body(n_predict=5, n_probs=2, repeat_last_n=7, seed=-1, stop=["x"], cache_prompt=True)
    )
    assert (made.text, made.params.max_tokens, made.params.sampling.logprobs) == ("a", 5, 2)
    assert made.params.sampling.penalty_last_n == 7
    [ids] = to_completion(body(prompt=[1, 2]))
    assert ids.token_ids.ids == [1, 2]


def test_several_prompts_are_answered_in_a_list() -> None:
    asked = body(
        prompt=["a", [1, 2], {"prompt_string": "c"}], response_fields=["content", "timings/prompt_n"]
    )
    made = to_completion(asked)
    assert [one.text or list(one.token_ids.ids) for one in made] == ["a", [1, 2], "c"]
    answer = CompletionAnswer(Head("1", "demo", 7), asked)
    for i in (2, 0, 1):
        for chunk in chunks():
            answer.add(i, chunk)
    assert answer.to_json() == [{"content": "xyz", "timings/prompt_n": 3}] * 3


@pytest.mark.parametrize(
    "prompt", [["a", 1], [1, "a"], [{}], [], {"prompt_string": "a", "multimodal_data": ["b"]}]
)
def test_a_prompt_is_a_text_or_token_ids(prompt: list[Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        to_completion(body(prompt=prompt))
    assert (caught.value.field or "").startswith("prompt")


def test_markers_of_a_prompt_stand_for_its_files() -> None:
    files = [base64.b64encode(data).decode() for data in (picture(), b"RIFF....WAVE")]
    asked = body(prompt={"prompt_string": "<__media__>a<__media__>", "multimodal_data": files})
    [made] = to_completion(asked)
    kinds = [part.WhichOneof("part") for part in made.parts.parts]
    assert kinds == ["text", "image", "text", "audio", "text"]
    assert [part.text for part in made.parts.parts][::2] == ["", "a", ""]
    assert made.parts.parts[1].image.data == picture()
    assert field_names(asked)["parts.parts[3].audio"] == "prompt.multimodal_data[1]"


@pytest.mark.parametrize(
    ("text", "files", "field"),
    [
        ("a", [""], "prompt.multimodal_data"),
        ("<__media__><__media__>", ["AAAA"], "prompt.multimodal_data"),
        ("<__media__><__media__>", ["AAAA", "no base64!"], "prompt.multimodal_data[1]"),
    ],
)
def test_a_prompt_has_a_file_for_each_marker(text: str, files: list[str], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        to_completion(body(prompt={"prompt_string": text, "multimodal_data": files}))
    assert caught.value.field == field


def test_files_of_a_project_precede_the_gap() -> None:
    made = to_infill(infill(input_extra=[{"filename": "x.py", "text": "one"}, {"text": "two"}], prompt="c"))
    assert (made.text, made.suffix) == ("x.py\none\ntwo\nac", "b")
    assert field_names(infill())["suffix"] == "input_suffix"


def test_a_gap_has_something_around_it() -> None:
    assert to_infill(infill(input_prefix="")).suffix == "b"
    with pytest.raises(InvalidArgument):
        to_infill(infill(input_prefix="", input_suffix=""))


def chunks() -> list[tokens_pb2.TokenChunk]:
    made = [tokens_pb2.TokenChunk(token_ids=[i], text=text) for i, text in enumerate("xyz")]
    for i, chunk in enumerate(made):
        entry = chunk.logprobs.add()
        entry.chosen.token_id, entry.chosen.text, entry.chosen.logprob = i, chunk.text, -1.0
    usage = generation_pb2.Usage(prompt_tokens=4, cached_prompt_tokens=1, completion_tokens=3)
    timings = generation_pb2.Timings(prefill_ms=6.0, decode_ms=10.0)
    made[-1].finished.CopyFrom(tokens_pb2.Finished(reason=STOP, usage=usage, timings=timings, stop="!"))
    return made


def test_an_answer_is_one_object_with_its_timings() -> None:
    asked = body(return_tokens=True, n_probs=0, logprobs=1)
    answer = CompletionAnswer(Head("1", "demo", 7), asked)
    for chunk in chunks():
        answer.add(0, chunk)
    made = answer.to_json()
    assert (made["content"], made["tokens"], made["stop"]) == ("xyz", [0, 1, 2], True)
    assert (made["stop_type"], made["stopping_word"], made["model"]) == ("word", "!", "demo")
    assert (made["timings"]["prompt_n"], made["timings"]["predicted_per_second"]) == (3, 300.0)
    assert [one["token"] for one in made["completion_probabilities"]] == list("xyz")


def test_a_stream_has_an_object_for_each_chunk_and_says_which_is_the_last() -> None:
    stream = CompletionStream(Head("1", "demo", 7), body())
    made = [message for chunk in chunks() for message in stream.messages(0, chunk)]
    assert [(m["content"], m["tokens"], m["stop"]) for m in made] == [
        ("x", [0], False),
        ("y", [1], False),
        ("z", [2], True),
    ]
    assert [m["tokens_predicted"] for m in made] == [1, 2, 3]


@pytest.mark.parametrize(("reason", "said"), [(STOP, "eos"), (LENGTH, "limit")])
def test_what_ended_an_answer_is_told(reason: Any, said: str) -> None:
    answer = CompletionAnswer(Head("1", "demo", 7), body())
    answer.add(0, tokens_pb2.TokenChunk(finished=tokens_pb2.Finished(reason=reason)))
    assert answer.to_json()["stop_type"] == said


@pytest.mark.parametrize(
    ("asked", "reason", "is_truncated"),
    [
        ({"n_predict": 3}, LENGTH, False),
        ({"n_predict": 9}, LENGTH, True),
        ({"n_predict": -1}, LENGTH, True),
        ({}, LENGTH, True),
        ({"n_predict": 9}, STOP, False),
    ],
)
def test_an_answer_that_the_context_ended_is_truncated(
    asked: dict[str, int], reason: generation_pb2.FinishReason.ValueType, is_truncated: bool
) -> None:
    answer = CompletionAnswer(Head("1", "demo", 7), body(**asked))
    usage = generation_pb2.Usage(prompt_tokens=9, completion_tokens=3)
    answer.add(0, tokens_pb2.TokenChunk(finished=tokens_pb2.Finished(reason=reason, usage=usage)))
    assert answer.to_json()["truncated"] is is_truncated
