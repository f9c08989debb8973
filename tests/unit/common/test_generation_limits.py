"""One definition of what may be asked of a generation."""

from __future__ import annotations

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests.generation_limits import check_params
from inferflux.v1 import generation_pb2

NAN, INF = float("nan"), float("inf")
LEAST = {"temperature": 0, "top_k": 0, "top_p": 1e-6, "min_p": 0, "repeat_penalty": 0.01, "logprobs": 0}
LEAST |= {"typical_p": 0, "xtc_probability": 0, "xtc_threshold": 0, "dry_multiplier": 0, "dry_base": 1}
LEAST |= {"dry_allowed_length": 0, "dry_penalty_last_n": -1, "dynatemp_range": 0, "dynatemp_exponent": 0}
LEAST |= {"top_n_sigma": -1}
MOST = {"temperature": 100, "top_k": 2**31 - 1, "top_p": 1, "min_p": 1, "repeat_penalty": 10, "logprobs": 20}
MOST |= {"typical_p": 1, "xtc_probability": 1, "xtc_threshold": 1, "dry_multiplier": 100, "dry_base": 100}
MOST |= {"dry_allowed_length": 2**31 - 1, "dynatemp_range": 100, "dynatemp_exponent": 100, "top_n_sigma": 100}


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
        *(
            (name, value)
            for name in ("typical_p", "xtc_probability", "xtc_threshold", "dry_multiplier", "dry_base")
            for value in (NAN, INF, -0.1, 100.5)
        ),
        *((name, value) for name in ("dynatemp_range", "dynatemp_exponent") for value in (NAN, -1.0, 101.0)),
        ("dry_base", 0.99),
        ("dry_allowed_length", -1),
        ("dry_penalty_last_n", -2),
        ("top_n_sigma", -1.5),
        ("top_n_sigma", INF),
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


@pytest.mark.parametrize(
    ("texts", "field"),
    [([""], "[0]"), (["a", "b" * 41], "[1]"), (["é" * 21], "[0]"), (["x"] * 17, "")],
)
def test_a_breaker_that_is_empty_or_too_long_is_refused_by_its_place(texts: list[str], field: str) -> None:
    breakers = generation_pb2.SequenceBreakers(texts=texts)
    params = generation_pb2.GenerationParams(
        sampling=generation_pb2.SamplingParams(dry_sequence_breakers=breakers)
    )
    with pytest.raises(InvalidArgument) as refused:
        check_params(params)
    assert refused.value.field == f"params.sampling.dry_sequence_breakers{field}"


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
