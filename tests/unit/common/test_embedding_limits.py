"""How texts become jobs, and which jobs and vectors can be."""

from __future__ import annotations

import math
import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.models.model_roles import check_role
from inferflux.common.contract.requests.embedding_limits import (
    MAX_JOB_TEXTS,
    MAX_JOB_TOKENS,
    check_task,
    split,
)
from inferflux.common.contract.requests.vectors import packed, shortened, unpacked
from inferflux.v1 import model_pb2, scheduler_pb2, tokens_pb2


@given(st.lists(st.integers(1, 3 * MAX_JOB_TOKENS), max_size=60))
def test_every_text_is_in_one_job_and_no_job_is_too_large(lengths: list[int]) -> None:
    jobs = list(split(lengths))
    assert [i for job in jobs for i in job] == list(range(len(lengths)))
    for job in jobs:
        assert 1 <= len(job) <= MAX_JOB_TEXTS
        assert len(job) == 1 or sum(lengths[i] for i in job) <= MAX_JOB_TOKENS


def job(*lengths: int, tokens: int | None = None, generated: int = 0) -> scheduler_pb2.InferenceRequest:
    return scheduler_pb2.InferenceRequest(
        prompt_token_ids=[1] * (sum(lengths) if tokens is None else tokens),
        generated_token_ids=[1] * generated,
        embedding=scheduler_pb2.EmbeddingTask(text_tokens=lengths),
    )


def test_a_job_is_what_it_says() -> None:
    check_task(job(1, 2, 3))
    check_task(job(*[1] * MAX_JOB_TEXTS))
    for bad in (job(), job(0, 1), job(2, tokens=1), job(1, tokens=2), job(*[1] * (MAX_JOB_TEXTS + 1))):
        with pytest.raises(InvalidArgument) as refused:
            check_task(bad)
        assert refused.value.field == "embedding.text_tokens"
    with pytest.raises(InvalidArgument, match="generated nothing"):
        check_task(job(1, generated=1))


def test_vectors_come_as_they_were_sent() -> None:
    sent = array("f", [0.6, -0.8])
    assert packed(sent) == struct.pack("<2f", 0.6, -0.8)
    (came,) = unpacked(tokens_pb2.Vectors(values=[packed(sent)]), count=1)
    assert came == sent


@pytest.mark.parametrize(
    "values", [[], [b""], [b"\0" * 3], [struct.pack("<f", math.nan)], [b"\0" * 4, b"\0" * 4]]
)
def test_vectors_that_cannot_be_are_refused(values: list[bytes]) -> None:
    with pytest.raises(InvalidArgument):
        unpacked(tokens_pb2.Vectors(values=values), count=1)


def test_a_shortened_vector_has_length_1() -> None:
    assert shortened(array("f", [3.0, 4.0, 12.0]), 2).tolist() == pytest.approx([0.6, 0.8])
    assert shortened(array("f", [0.0, 0.0, 1.0]), 2).tolist() == [0.0, 0.0]


def test_a_model_is_asked_for_what_it_is_there_for() -> None:
    generation, embedding = model_pb2.MODEL_ROLE_GENERATION, model_pb2.MODEL_ROLE_EMBEDDING
    old = model_pb2.ModelCard(name="m")
    check_role(old, generation)
    check_role(model_pb2.ModelCard(name="m", role=embedding), embedding)
    with pytest.raises(
        InvalidArgument, match=r"the model m generates: use Chat or Generate, .*/v1/chat/completions"
    ):
        check_role(old, embedding)
