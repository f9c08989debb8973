"""A job leaves nothing to be decided later."""

from __future__ import annotations

import pytest

from inferflux.gateway.request.preparation import DEFAULT_SAMPLING, resolve
from inferflux.v1 import generation_pb2

Params = generation_pb2.GenerationParams
Sampling = generation_pb2.SamplingParams


def test_every_optional_field_is_set_but_log_probabilities() -> None:
    resolved = resolve(Params(), prompt_tokens=10, context_length=100)
    given = {field.name for field, _ in resolved.sampling.ListFields()}
    unset = [f.name for f in Sampling.DESCRIPTOR.fields if f.has_presence and f.name not in given]
    assert unset == ["logprobs"]
    assert resolved.HasField("max_tokens")


def test_what_was_given_wins_even_where_it_is_zero() -> None:
    given = Params(sampling=Sampling(temperature=0, top_k=0, seed=0, logprobs=0, logit_bias={3: -1.5}))
    sampling = resolve(given, prompt_tokens=1, context_length=10).sampling
    assert (sampling.temperature, sampling.top_k, sampling.seed) == (0, 0, 0)
    assert sampling.HasField("logprobs")
    assert dict(sampling.logit_bias) == {3: -1.5}
    assert sampling.top_p == DEFAULT_SAMPLING.top_p


def test_seeds_are_drawn_anew_for_every_request() -> None:
    seeds = {resolve(Params(), prompt_tokens=1, context_length=10).sampling.seed for _ in range(20)}
    assert len(seeds) == 20


def test_choices_draw_with_seeds_of_their_own() -> None:
    given = Params(sampling=Sampling(seed=2**64 - 1))
    seeds = [resolve(given, prompt_tokens=1, context_length=10, choice=i).sampling.seed for i in range(3)]
    assert seeds == [2**64 - 1, 0, 1]


def test_max_tokens_never_passes_the_end_of_the_context() -> None:
    assert resolve(Params(), prompt_tokens=10, context_length=100).max_tokens == 90
    assert resolve(Params(max_tokens=95), prompt_tokens=10, context_length=100).max_tokens == 90
    assert resolve(Params(max_tokens=5), prompt_tokens=10, context_length=100).max_tokens == 5


def test_the_whole_context_as_penalty_window_is_a_number() -> None:
    given = Params(sampling=Sampling(penalty_last_n=-1))
    assert resolve(given, prompt_tokens=1, context_length=4096).sampling.penalty_last_n == 4096


def test_the_whole_context_as_dry_window_is_a_number() -> None:
    given = Params(sampling=Sampling(dry_penalty_last_n=-1))
    assert resolve(given, prompt_tokens=1, context_length=4096).sampling.dry_penalty_last_n == 4096


@pytest.mark.parametrize("texts", [[], ["x"], ["\n"]])
def test_given_breakers_take_the_place_of_the_default_ones(texts: list[str]) -> None:
    given = Params(sampling=Sampling(dry_sequence_breakers=generation_pb2.SequenceBreakers(texts=texts)))
    resolved = resolve(given, prompt_tokens=1, context_length=10)
    assert list(resolved.sampling.dry_sequence_breakers.texts) == texts


@pytest.mark.parametrize(
    ("own", "of_key", "found"),
    [
        (None, True, True),
        (None, False, None),
        (False, True, False),
        (True, False, True),
    ],
)
def test_a_request_that_leaves_it_open_is_deterministic_as_its_key_is(
    own: bool | None, of_key: bool, found: bool | None
) -> None:
    given = Params(deterministic=own)
    resolved = resolve(given, prompt_tokens=1, context_length=10, deterministic=of_key)
    assert (resolved.deterministic if resolved.HasField("deterministic") else None) is found


def test_the_callers_message_is_left_alone() -> None:
    given = Params(stop=["x"])
    resolved = resolve(given, prompt_tokens=1, context_length=10)
    assert given == Params(stop=["x"])
    assert list(resolved.stop) == ["x"]
