"""Sampled tokens are appended one after the other, until one of them ends the generation or the timeslice."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from harness.answer_syntaxes import MISTRAL
from harness.sequences import new_sequence

from inferflux.v1 import generation_pb2, worker_pb2
from inferflux.worker.engine.plan.acceptance import accept
from inferflux.worker.engine.plan.building import sequence_of
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.plan.text import TextAssembler

PIECES = SimpleNamespace(eog=frozenset[int](), piece=lambda token: bytes([65 + token]))
STOP, LENGTH = generation_pb2.FINISH_REASON_STOP, generation_pb2.FINISH_REASON_LENGTH


def decoding(*, max_tokens: int = 10) -> Sequence:
    made = new_sequence(0, np.zeros(3 + max_tokens, np.int32), prompt_tokens=3)
    made.max_tokens = max_tokens
    return made


def test_several_tokens_are_appended_in_one_step() -> None:
    sequence = decoding()
    accepted = accept(sequence, [1, 2, 3], PIECES)
    assert (accepted.tokens, accepted.text, accepted.finish_reason) == ([1, 2, 3], "BCD", None)
    assert sequence.tokens[3:6].tolist() == [1, 2, 3]
    assert sequence.generated == 3


def test_what_follows_an_end_token_is_dropped() -> None:
    sequence = decoding()
    sequence.end_tokens = frozenset({2})
    accepted = accept(sequence, [1, 2, 3], PIECES)
    assert (accepted.tokens, accepted.finish_reason) == ([1, 2], STOP)
    assert sequence.generated == 2


def test_what_follows_a_stop_string_is_dropped() -> None:
    sequence = decoding()
    sequence.answer.text = TextAssembler(["CD"])
    accepted = accept(sequence, [1, 2, 3, 4], PIECES)
    assert (accepted.tokens, accepted.text, accepted.finish_reason) == ([1, 2, 3], "B", STOP)


def test_no_more_tokens_are_taken_than_were_asked_for() -> None:
    sequence = decoding(max_tokens=2)
    accepted = accept(sequence, [1, 2, 3], PIECES)
    assert (accepted.tokens, accepted.finish_reason) == ([1, 2], LENGTH)


@pytest.mark.parametrize(("yields_at", "taken"), [(0, 3), (2, 2), (3, 3)])
def test_a_timeslice_ends_within_the_tokens_of_a_step(yields_at: int, taken: int) -> None:
    sequence = decoding()
    sequence.yields_at = yields_at
    accepted = accept(sequence, [1, 2, 3], PIECES)
    assert len(accepted.tokens) == taken
    assert accepted.is_timeslice_over == bool(yields_at)
    assert accepted.finish_reason is None


def test_control_tokens_that_spell_calls_are_text_of_answers_with_tools() -> None:
    bracket = 7
    pieces = SimpleNamespace(
        eog=frozenset[int](),
        piece=lambda token: b"" if token == bracket else bytes([65 + token]),
        control_token=lambda text: bracket if text == "[TOOL_CALLS]" else None,
    )
    item = worker_pb2.BatchItem()
    item.request.prompt_token_ids.append(1)
    item.request.params.max_tokens = 4

    def accepted() -> str:
        sequence = sequence_of(item, arrival=0, now_s=0.0, unix_s=0.0, pieces=pieces)
        return accept(sequence, [1, bracket, 2], pieces).text

    assert accepted() == "BC"
    item.request.params.constraint.tool_calls.syntax.CopyFrom(MISTRAL)
    assert accepted() == "B[TOOL_CALLS]C"
    item.request.params.ClearField("constraint")
    item.request.answer_format.syntax.CopyFrom(MISTRAL)
    assert accepted() == "B[TOOL_CALLS]C"


def test_control_tokens_that_spell_reasoning_are_text_of_answers_that_may_reason() -> None:
    ids = {"<think>": 7, "</think>": 8}
    pieces = SimpleNamespace(
        eog=frozenset[int](),
        piece=lambda token: b"" if token in ids.values() else bytes([65 + token]),
        control_token=ids.get,
    )
    item = worker_pb2.BatchItem()
    item.request.prompt_token_ids.append(1)
    item.request.params.max_tokens = 9
    item.request.answer_format.reasoning = generation_pb2.REASONING_FORMAT_OPTIONAL
    sequence = sequence_of(item, arrival=0, now_s=0.0, unix_s=0.0, pieces=pieces)
    assert accept(sequence, [7, 1, 2, 8, 3], pieces).text == "<think>BC</think>D"
    assert sequence.answer.reasoning is not None
    assert sequence.answer.reasoning.n_tokens == 4
    # A retry counts what was generated before, too.
    item.request.generated_token_ids.extend([7, 1])
    again = sequence_of(item, arrival=0, now_s=0.0, unix_s=0.0, pieces=pieces)
    assert accept(again, [2, 8, 3], pieces).text == "C</think>D"
    assert again.answer.reasoning is not None
    assert again.answer.reasoning.n_tokens == 4
