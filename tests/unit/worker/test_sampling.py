"""Sampling: each parameter does what its name says, and the draw depends on (seed, index) alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.v1 import generation_pb2
from inferflux.worker.engine.sampling import noise
from inferflux.worker.engine.sampling.sampling import BadLogits, Sampler, top_ids

NEUTRAL: dict[str, Any] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repeat_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "penalty_last_n": 64,
    "seed": 1,
}


def sampler(history: list[int] | None = None, **changes: Any) -> Sampler:
    return Sampler(generation_pb2.SamplingParams(**{**NEUTRAL, **changes}), history or [])


def logits_of(probabilities: list[float]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.log(np.array(probabilities, np.float32))


def frequencies(
    chosen: Sampler, logits: np.ndarray[Any, np.dtype[np.float32]], n: int = 4000
) -> Counter[int]:
    return Counter(chosen.choose(logits, i) for i in range(n))


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=2000),
    st.integers(1, 64),
)
def test_top_ids_are_the_largest_in_order(values: list[float], k: int) -> None:
    logits = np.array(values, np.float32)
    ids = top_ids(logits, k)
    assert logits[ids].tolist() == sorted(values, reverse=True)[:k]
    assert len(set(ids.tolist())) == min(k, len(values))


def test_draws_follow_the_probabilities() -> None:
    counts = frequencies(sampler(), logits_of([0.5, 0.3, 0.2]))
    assert counts[0] / 4000 == pytest.approx(0.5, abs=0.04)
    assert counts[2] / 4000 == pytest.approx(0.2, abs=0.04)


@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 30}, {"top_p": 0.9}, {"top_k": 50, "top_p": 0.9, "min_p": 0.01}]
)
def test_frequencies_follow_the_softmax_of_what_survives(filters: dict[str, Any]) -> None:
    n, temperature = 6_000, 0.7
    logits = np.random.default_rng(3).standard_normal(60).astype(np.float32) * np.float32(2)
    counts = frequencies(sampler(temperature=temperature, **filters), logits, n)
    survivors = sorted(surviving(logits, filters))
    assert set(counts) <= set(survivors)
    weights = np.exp(logits[survivors].astype(np.float64) / temperature)
    expected = n * weights / weights.sum()
    is_rare = expected < 5  # chi-square wants them as one
    observed = np.array([counts[token] for token in survivors])
    expected = np.append(expected[~is_rare], max(expected[is_rare].sum(), 1e-9))
    observed = np.append(observed[~is_rare], observed[is_rare].sum())
    chi_square = ((observed - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    assert chi_square < freedom + 3.5 * math.sqrt(2 * freedom)


def surviving(logits: np.ndarray[Any, np.dtype[np.float32]], filters: dict[str, Any]) -> set[int]:
    """By the definitions of top-k, top-p and min-p, token by token."""
    order = sorted(range(len(logits)), key=lambda token: -logits[token])[
        : filters.get("top_k") or len(logits)
    ]
    weights = [math.exp(logits[token]) for token in order]
    kept, reached = [], 0.0
    for token, weight in zip(order, weights, strict=True):
        if reached >= filters.get("top_p", 1.0):
            break
        kept.append(token)
        reached += weight / sum(weights)
    return {t for t in kept if logits[t] >= logits[order[0]] + math.log(filters.get("min_p") or 1e-300)}


def test_temperature_sharpens() -> None:
    counts = frequencies(sampler(temperature=0.5), logits_of([0.6, 0.4]))
    assert counts[0] / 4000 == pytest.approx(0.36 / 0.52, abs=0.04)


def test_temperature_zero_is_greedy() -> None:
    assert sampler(temperature=0.0).is_greedy
    assert set(frequencies(sampler(temperature=0.0), logits_of([0.3, 0.4, 0.3]), 50)) == {1}


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-20])
@pytest.mark.parametrize("top_k", [0, 2])
def test_a_temperature_next_to_zero_is_greedy_too(temperature: float, top_k: int) -> None:
    logits = np.array([1.0, 30.0, 2.0, -5.0], np.float32)
    assert set(frequencies(sampler(temperature=temperature, top_k=top_k), logits, 50)) == {1}


def test_top_k_keeps_the_k_largest() -> None:
    assert set(frequencies(sampler(top_k=2), logits_of([0.1, 0.4, 0.2, 0.3]))) == {1, 3}


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    logits = logits_of([0.1, 0.4, 0.2, 0.3])
    assert set(frequencies(sampler(top_p=0.65), logits)) == {1, 3}
    assert set(frequencies(sampler(top_p=0.75), logits)) == {1, 3, 2}


def test_top_p_over_a_flat_large_vocabulary_widens_until_it_has_enough() -> None:
    logits = np.zeros(5000, np.float32)
    chosen = frequencies(sampler(top_p=0.5), logits)
    assert len(chosen) > 1500
    assert max(chosen) < 2600


def test_min_p_drops_what_is_unlikely_beside_the_best() -> None:
    assert set(frequencies(sampler(min_p=0.6), logits_of([0.1, 0.4, 0.2, 0.3]))) == {1, 3}


def test_repeat_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    logits = np.array([2.0, 1.5, -1.0], np.float32)
    assert sampler([0], temperature=0.0, repeat_penalty=2.0).choose(logits, 0) == 1
    low = np.array([-1.0, -1.5, -9.0], np.float32)
    assert sampler([0], temperature=0.0, repeat_penalty=2.0).choose(low, 0) == 1


def test_frequency_counts_and_presence_does_not() -> None:
    logits = np.array([1.0, 0.0], np.float32)
    assert sampler([0, 0, 0], temperature=0.0, frequency_penalty=0.5).choose(logits, 0) == 1
    assert sampler([0, 0, 0], temperature=0.0, presence_penalty=0.5).choose(logits, 0) == 0
    assert sampler([0], temperature=0.0, presence_penalty=1.5).choose(logits, 0) == 1


def test_penalties_look_at_the_last_n_tokens_only() -> None:
    logits = np.array([1.0, 0.0], np.float32)
    chosen = sampler([0, 1, 1], temperature=0.0, presence_penalty=2.0, penalty_last_n=2)
    assert chosen.choose(logits, 0) == 0
    chosen.accept(0)
    assert chosen.choose(logits, 1) == 0
    chosen.accept(0)
    assert chosen.choose(logits, 2) == 1


def test_penalties_do_not_go_through_a_long_prompt() -> None:
    class LongPrompt(list[int]):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("every token was looked at")

    prompt = LongPrompt([0, 1, 1])
    chosen = sampler(prompt, temperature=0.0, presence_penalty=2.0, penalty_last_n=2)
    assert chosen.choose(np.array([1.0, 0.0], np.float32), 0) == 0


def test_without_a_window_penalties_look_at_every_token() -> None:
    logits = np.array([1.0, 0.0], np.float32)
    chosen = sampler([0, *[1] * 100], temperature=0.0, presence_penalty=2.0, penalty_last_n=-1)
    assert chosen.choose(logits, 0) == 0
    chosen = sampler([0, *[2] * 100], temperature=0.0, presence_penalty=2.0, penalty_last_n=-1)
    assert chosen.choose(np.array([1.0, 0.0, 0.0], np.float32), 0) == 1


def test_logit_bias_moves_a_token_and_leaves_the_row_as_it_was() -> None:
    logits = np.array([1.0, 0.0], np.float32)
    assert sampler(temperature=0.0, logit_bias={1: 5.0}).choose(logits, 0) == 1
    assert logits.tolist() == [1.0, 0.0]


def test_typical_p_keeps_what_is_as_likely_as_expected() -> None:
    logits = logits_of([0.6, 0.2, 0.1, 0.05, 0.05])  # the entropy is that of one token of 0.31
    assert set(frequencies(sampler(typical_p=0.15), logits)) == {1}
    assert set(frequencies(sampler(typical_p=0.3), logits)) == {0, 1}


def test_xtc_drops_the_likely_tokens_but_the_last_of_them() -> None:
    logits = logits_of([0.4, 0.3, 0.2, 0.1])
    chosen = sampler(xtc_probability=1.0, xtc_threshold=0.15)
    assert set(frequencies(chosen, logits)) == {2, 3}
    alone = sampler(xtc_probability=1.0, xtc_threshold=0.35)
    assert set(frequencies(alone, logits)) == {0, 1, 2, 3}


def test_xtc_is_drawn_by_seed_and_index() -> None:
    def chosen(seed: int) -> list[int]:
        one = sampler(xtc_probability=0.5, xtc_threshold=0.05, temperature=0.0, seed=seed)
        return [one.choose(logits, index) for index in range(400)]

    logits = logits_of([0.9, 0.1])
    assert chosen(1) == chosen(1)
    assert chosen(1) != chosen(2)
    assert sum(chosen(1)) / 400 == pytest.approx(0.5, abs=0.1)


def test_xtc_drops_no_masked_token() -> None:
    logits = np.array([2.0, 1.0, -math.inf, -math.inf], np.float32)
    assert set(frequencies(sampler(xtc_probability=1.0, xtc_threshold=0.0), logits, 100)) == {1}


def test_the_temperature_is_lower_where_the_model_is_certain() -> None:
    dynamic: dict[str, Any] = {"temperature": 1.0, "dynatemp_range": 0.9}
    certain = frequencies(sampler(**dynamic), logits_of([0.9, 0.05, 0.05]))
    assert certain[0] > frequencies(sampler(temperature=1.0), logits_of([0.9, 0.05, 0.05]))[0]
    even = frequencies(sampler(**dynamic), np.zeros(3, np.float32))
    assert min(even.values()) > 1200


def test_top_n_sigma_keeps_what_is_near_the_largest_logit() -> None:
    logits = np.array([3.0, 2.5, 0.0, 0.0, 0.0, 0.0], np.float32)
    assert set(frequencies(sampler(top_n_sigma=1.0), logits, 200)) == {0, 1}


def test_equal_logits_at_temperature_zero_give_the_first_of_them_whatever_the_seed() -> None:
    logits = np.array([0.0, 1.0, 1.0, -1.0], np.float32)
    for seed in range(20):
        assert sampler(temperature=0.0, typical_p=0.99, seed=seed).choose(logits, seed) == 1


def test_dry_keeps_a_repetition_from_going_on() -> None:
    dry = {"dry_multiplier": 2.0, "dry_base": 2.0, "dry_allowed_length": 2, "dry_penalty_last_n": 64}
    logits = np.array([0.0, 0.0, 1.0, 0.5], np.float32)
    assert sampler([0, 1, 2, 3, 0, 1], temperature=0.0, **dry).choose(logits, 0) == 3
    assert sampler([0, 1, 2, 3, 1, 1], temperature=0.0, **dry).choose(logits, 0) == 2


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 2**64 - 1))
def test_a_retry_draws_what_the_first_try_would_have(prompt: list[int], seed: int) -> None:
    asked: dict[str, Any] = {
        "seed": seed,
        "dry_multiplier": 0.8,
        "dry_base": 1.75,
        "dry_allowed_length": 1,
        "dry_penalty_last_n": 16,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.1,
        "typical_p": 0.9,
        "dynatemp_range": 0.3,
        "dynatemp_exponent": 1.0,
    }
    rows = np.random.default_rng(1).standard_normal((12, 4)).astype(np.float32)
    first, made = sampler(prompt, **asked), list[int]()
    for index, row in enumerate(rows):
        made.append(first.choose(row, index))
        first.accept(made[-1])
        retried = sampler(prompt + made, **asked)
        following = rows[(index + 1) % 12]
        assert retried.choose(following, index + 1) == first.choose(following, index + 1)


@pytest.mark.parametrize("bad", [[math.nan, 1.0], [-math.inf, -math.inf], [math.inf, 0.0]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_error_not_a_token(bad: list[float], temperature: float) -> None:
    with pytest.raises(BadLogits):
        sampler(temperature=temperature).choose(np.array(bad, np.float32), 0)


def test_a_draw_does_not_depend_on_tokens_that_lose() -> None:
    logits = np.random.default_rng(5).standard_normal(500).astype(np.float32) * np.float32(3)
    for index in range(200):
        chosen = sampler().choose(logits, index)
        fewer = logits.copy()
        fewer[(np.arange(500) + index) % 3 == 0] = -np.inf
        fewer[chosen] = logits[chosen]
        assert sampler().choose(fewer, index) == chosen


def test_logits_that_differ_by_rounding_seldom_part_the_draws() -> None:
    # Total variation is the least. Boundaries of a cumulative distribution move with every logit before them.
    rng = np.random.default_rng(5)
    logits = rng.standard_normal(2048).astype(np.float32) * np.float32(3)
    other = logits + rng.standard_normal(2048).astype(np.float32) * np.float32(0.01)
    weights = [np.exp(row - logits.max(), dtype=np.float64) for row in (logits, other)]
    distance = np.abs(weights[0] / weights[0].sum() - weights[1] / weights[1].sum()).sum() / 2
    parted = sum(sampler().choose(logits, i) != sampler().choose(other, i) for i in range(1500))
    assert parted / 1500 < 3 * distance


@pytest.mark.parametrize("temperature", [0.01, 0.3, 1.0, 4.0])
def test_what_is_cut_before_the_draw_could_not_have_won(temperature: float) -> None:
    logits = np.linspace(-90, 30, 30_000, dtype=np.float32)
    np.random.default_rng(5).shuffle(logits)
    every = np.arange(30_000)
    for index in range(20):
        state = noise.draw_states([noise.seed_state(9)], [index])
        scores = logits.astype(np.float64) / temperature + noise.gumbel(state, every)
        assert sampler(seed=9, temperature=temperature).choose(logits, index) == scores.argmax()


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**20))
def test_the_draw_does_not_depend_on_what_was_drawn_before(seed: int, index: int) -> None:
    logits = logits_of([0.25, 0.25, 0.25, 0.25])
    fresh, used = sampler(seed=seed), sampler(seed=seed)
    for i in range(5):
        used.choose(logits, i)
    assert fresh.choose(logits, index) == used.choose(logits, index)
