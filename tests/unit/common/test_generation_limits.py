"""One definition of what may be asked of a generation."""

from __future__ import annotations

import pytest

from inferflux.common.errors import InvalidArgument
from inferflux.common.generation_limits import check_params
from inferflux.v1 import generation_pb2

NAN, INF = float("nan"), float("inf")
LEAST = {"temperature": 0, "top_k": 0, "top_p": 1e-6, "min_p": 0, "repeat_penalty": 0.01, "logprobs": 0}
MOST = {"temperature": 100, "top_k": 2**31 - 1, "top_p": 1, "min_p": 1, "repeat_penalty": 10, "logprobs": 20}


@pytest.mark.parametrize("sampling", [{}, LEAST, MOST])
def test_both_ends_of_every_range_are_allowed(sampling: dict[str, float]) -> None:
    check_params(generation_pb2.GenerationParams(sampling=generation_pb2.SamplingParams(**sampling)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, NAN) for name in ("temperature", "top_p", "min_p", "repeat_penalty")),
        *((name, INF) for name in ("temperature", "top_p", "min_p", "repeat_penalty")),
        ("frequency_penalty", NAN),
        ("presence_penalty", -INF),
        ("min_p", 2.0),
        ("logprobs", -1),
        ("logprobs", 21),
        ("top_k", -1),
        ("top_p", 0.0),
        ("repeat_penalty", 0.0),
        ("repeat_penalty", 1e-38),
        ("repeat_penalty", 0.009),
        ("repeat_penalty", -1.0),
        ("penalty_last_n", -2),
    ],
)
def test_what_is_out_of_range_or_not_finite_is_refused_by_name(name: str, value: float) -> None:
    sampling = generation_pb2.SamplingParams(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument) as refused:
        check_params(generation_pb2.GenerationParams(sampling=sampling))
    assert refused.value.field == f"params.sampling.{name}"


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("stop_token_ids[1]", generation_pb2.GenerationParams(stop_token_ids=[1, 2048])),
        (
            "logit_bias",
            generation_pb2.GenerationParams(sampling=generation_pb2.SamplingParams(logit_bias={2048: 1.0})),
        ),
    ],
)
def test_the_message_names_the_field_of_a_token_id(
    name: str, params: generation_pb2.GenerationParams
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_params(params, vocabulary_size=2048)
    assert refused.value.message == f"{name}: token id 2048 is not in [0, 2048)"


@pytest.mark.parametrize("bias", [NAN, INF, -INF, 100.5])
def test_a_bias_out_of_range_is_refused_with_its_token(bias: float) -> None:
    sampling = generation_pb2.SamplingParams(logit_bias={7: bias})
    with pytest.raises(InvalidArgument) as refused:
        check_params(generation_pb2.GenerationParams(sampling=sampling))
    assert refused.value.field == "params.sampling.logit_bias[7]"


def test_an_unknown_source_of_drafts_is_refused() -> None:
    params = generation_pb2.GenerationParams(speculation=9)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument) as refused:
        check_params(params)
    assert refused.value.field == "params.speculation"
