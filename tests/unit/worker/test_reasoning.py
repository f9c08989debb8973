"""Tokens of the reasoning are counted up to its end, however the answer was cut into tokens, and limited."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.v1 import generation_pb2
from inferflux.worker.engine.constraints.reasoning import Closing, Reasoning

OPTIONAL, OPEN = generation_pb2.REASONING_FORMAT_OPTIONAL, generation_pb2.REASONING_FORMAT_OPEN


def written(form: generation_pb2.ReasoningFormat.ValueType) -> generation_pb2.AnswerFormat:
    return generation_pb2.AnswerFormat(reasoning=form)


def count(form: generation_pb2.ReasoningFormat.ValueType, pieces: list[bytes]) -> int:
    counted = Reasoning(written(form))
    for piece in pieces:
        counted.push(piece)
    return counted.n_tokens


@pytest.mark.parametrize(
    ("form", "pieces", "expected"),
    [
        (OPEN, [b"a", b"b</", b"think", b">c", b"d"], 4),
        (OPEN, [b"a", b"b"], 2),
        (OPEN, [], 0),
        (OPTIONAL, [b" \n", b"<th", b"ink>", b"a", b"</think>", b"b"], 5),
        (OPTIONAL, [b"<thi", b"s is no thought", b"</think>"], 0),
        (OPTIONAL, [b"\n", b"<thi"], 0),
        (OPTIONAL, [b"<think>", b"a", b""], 3),
    ],
)
def test_markers_count_and_what_follows_does_not(
    form: generation_pb2.ReasoningFormat.ValueType, pieces: list[bytes], expected: int
) -> None:
    assert count(form, pieces) == expected


@given(st.text(alphabet="a<é/>", max_size=12), st.lists(st.integers(0, 60), max_size=12))
def test_it_is_the_token_that_completes_the_end(thought: str, cuts: list[int]) -> None:
    text = f"<think>{thought}</think>and an answer</think>".encode()
    end = text.index(b"</think>") + len(b"</think>")
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    assert count(OPTIONAL, pieces) == next(i for i, place in enumerate(places) if place >= end)


CLOSING = (7, 8)
PIECES = {7: b"\n</think>", 8: b"\n\n"}


def generated(reasoning: Reasoning, pieces: list[bytes]) -> list[bytes]:
    """Return what comes where the model would say `pieces`, one after the other."""
    said = []
    for piece in pieces:
        said.append(PIECES[reasoning.forced[0]] if reasoning.forced else piece)
        reasoning.push(said[-1])
    return said


@pytest.mark.parametrize(
    ("form", "most", "expected"),
    [
        (OPEN, 0, "\n</think>|\n\n|c|d|e|f"),
        (OPEN, 2, "a|b|\n</think>|\n\n|e|f"),
        (OPEN, 9, "a|b|c|d|e|f"),
        (OPTIONAL, 0, "a|b|c|d|e|f"),
    ],
)
def test_a_thought_that_has_its_tokens_is_closed_and_the_answer_follows(
    form: generation_pb2.ReasoningFormat.ValueType, most: int, expected: str
) -> None:
    reasoning = Reasoning(written(form), most=most, closing=CLOSING)
    said = generated(reasoning, [b"a", b"b", b"c", b"d", b"e", b"f"])
    assert b"|".join(said).decode() == expected


def test_what_opens_a_thought_that_may_have_no_tokens_is_followed_by_its_end() -> None:
    reasoning = Reasoning(written(OPTIONAL), most=0, closing=CLOSING)
    assert generated(reasoning, [b"<th", b"ink>", b"a", b"b", b"c"]) == [
        b"<th",
        b"ink>",
        *PIECES.values(),
        b"c",
    ]


def test_a_character_is_completed_before_the_end_is_forced() -> None:
    reasoning = Reasoning(written(OPEN), most=1, closing=CLOSING)
    said = generated(reasoning, ["é".encode()[:1], "é".encode()[1:], b"a", b"b", b"c"])
    assert b"".join(said).decode() == "é\n</think>\n\nc"


@given(st.lists(st.sampled_from(["a", "é", "</", "think", ">", "</think>", "b"])), st.integers(0, 12))
def test_a_limit_holds_and_is_the_same_after_a_retry(words: list[str], most: int) -> None:
    pieces = [byte.to_bytes() for byte in "".join(words).encode()]
    whole = Reasoning(written(OPEN), most=most, closing=CLOSING)
    said = generated(whole, pieces)
    assert whole.n_tokens <= most + 1 + len(CLOSING[:1])
    for cut in range(len(said)):
        again = Reasoning(written(OPEN), most=most, closing=CLOSING)
        for piece in said[:cut]:
            again.push(piece)
        assert said[:cut] + generated(again, pieces[cut:]) == said


@given(st.lists(st.sampled_from([b"a", b"</think>", "é".encode()[:1], "é".encode()[1:]])), st.integers(0, 6))
def test_nothing_is_forced_within_the_tokens_that_are_free(pieces: list[bytes], most: int) -> None:
    reasoning = Reasoning(written(OPEN), most=most, closing=CLOSING)
    for i in range(len(pieces)):
        n_free = reasoning.n_free
        ahead = Reasoning(written(OPEN), most=most, closing=CLOSING)
        for piece in pieces[:i]:
            ahead.push(piece)
        for piece in pieces[i : i + n_free]:
            assert not ahead.forced or reasoning.forced
            ahead.push(piece)
        if reasoning.forced:
            return
        reasoning.push(pieces[i])


def test_forced_tokens_are_the_only_ones_until_all_of_them_came() -> None:
    closing, mask = Closing((3, 40), None), np.zeros(2, np.int32)
    assert closing.fill(mask)
    assert mask.tolist() == [1 << 3, 0]
    closing.look_ahead(3)
    assert closing.fill(mask)
    assert mask.tolist() == [0, 1 << 8]
    closing.look_ahead(40)
    assert closing.fill(mask)
    assert mask.tolist() == [-1, -1]
    closing.look_back()
    assert closing.fill(mask)
    assert mask.tolist() == [1 << 3, 0]
