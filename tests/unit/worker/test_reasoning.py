"""Tokens of the reasoning are counted up to its end, however the answer was cut into tokens."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.v1 import generation_pb2
from inferflux.worker.engine.reasoning import ReasoningCount

OPTIONAL, OPEN = generation_pb2.REASONING_FORMAT_OPTIONAL, generation_pb2.REASONING_FORMAT_OPEN


def count(form: generation_pb2.ReasoningFormat.ValueType, pieces: list[bytes]) -> int:
    counted = ReasoningCount(form)
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
