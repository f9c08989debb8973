"""Rows that are sampled together get the tokens that each would get by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from inferflux.v1 import generation_pb2
from inferflux.worker.engine.sampling.logprobs import log_probabilities
from inferflux.worker.engine.sampling.sampling import BadLogits, Sampler, top_ids
from inferflux.worker.engine.sampling.sampling_rows import BAD, choose_tokens, top_of_rows

Logits = NDArray[np.float32]

# Among them sizes with a rest, and one whose groups hold a single logit.
VOCABULARIES = [7, 40, 129, 2048, 5003, 32_001]

settings_of_a_row = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.0, 1e-20, 0.3, 0.8, 0.8, 1.7]),
        "top_k": st.sampled_from([0, 1, 5, 40, 40, 40, 41, 300]),
        "top_p": st.sampled_from([1.0, 0.95, 0.95, 0.5, 0.01]),
        "min_p": st.sampled_from([0.0, 0.0, 0.05, 0.6]),
        "repeat_penalty": st.sampled_from([1.0, 1.0, 1.3]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, 0.7]),
        "presence_penalty": st.sampled_from([0.0, -0.4]),
        "penalty_last_n": st.sampled_from([0, 3, -1]),
        "seed": st.integers(0, 2**64 - 1),
        "logit_bias": st.dictionaries(st.integers(0, 6), st.floats(-100, 100, width=32), max_size=3),
        "typical_p": st.sampled_from([1.0, 1.0, 0.9, 0.3, 0.0]),
        "xtc_probability": st.sampled_from([0.0, 0.0, 0.5, 1.0]),
        "xtc_threshold": st.sampled_from([0.0, 0.1, 0.5, 0.7]),
        "dry_multiplier": st.sampled_from([0.0, 0.0, 0.8]),
        "dry_base": st.sampled_from([1.0, 1.75]),
        "dry_allowed_length": st.sampled_from([0, 1, 2]),
        "dry_penalty_last_n": st.sampled_from([0, 3, 64]),
        "dynatemp_range": st.sampled_from([0.0, 0.0, 0.5, 2.0]),
        "dynatemp_exponent": st.sampled_from([0.0, 1.0, 2.5]),
        "top_n_sigma": st.sampled_from([-1.0, 0.0, 0.5, 1.5]),
    }
)


def sampler(settings: dict[str, Any], history: list[int]) -> Sampler:
    return Sampler(generation_pb2.SamplingParams(**settings), history)


def logits_of(seed: int, rows: int, vocabulary: int, kind: str) -> Logits:
    rng = np.random.default_rng(seed)
    made = rng.standard_normal((rows, vocabulary), np.float32) * np.float32(3)
    if kind == "ties":
        made = np.round(made)
    elif kind == "flat":
        made[::2] = 1.5
    elif kind == "bad":
        made[0, -1] = np.nan
        made[1 % rows, 0] = np.inf
        made[2 % rows] = -np.inf
    elif kind == "few":
        made[:, 3:] = -np.inf
    return made


def by_itself(one: Sampler, row: Logits, index: int) -> int:
    try:
        return one.choose(row, index)
    except BadLogits:
        return BAD


@given(
    st.lists(settings_of_a_row, min_size=1, max_size=12),
    st.sampled_from(VOCABULARIES),
    st.sampled_from(["usual", "usual", "ties", "flat", "bad", "few"]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_rows_together_get_the_tokens_of_each_by_itself(
    rows: list[dict[str, Any]], vocabulary: int, kind: str, are_alike: bool, seed: int
) -> None:
    if are_alike:  # so that they are sampled together
        rows = [{**rows[0], "seed": row["seed"]} for row in rows]
    logits = logits_of(seed, len(rows), vocabulary, kind)
    before = logits.copy()
    samplers = [sampler(row, [1, 5, 2, 2, 6, 1, 5]) for row in rows]
    indices = [seed + 7 * i for i in range(len(rows))]
    expected = [by_itself(*given) for given in zip(samplers, logits, indices, strict=True)]
    assert choose_tokens(logits, samplers, indices) == expected
    assert np.array_equal(logits, before, equal_nan=True)


def test_many_draws_together_are_those_one_by_one() -> None:
    settings = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.01}
    logits = logits_of(1, 64, 2048, "usual")
    samplers = [sampler({**settings, "seed": seed}, []) for seed in range(64)]
    for index in range(50):
        expected = [one.choose(row, index) for one, row in zip(samplers, logits, strict=True)]
        assert choose_tokens(logits, samplers, [index] * 64) == expected


@pytest.mark.parametrize(
    "filters",
    [
        {"typical_p": 0.7},
        {"xtc_probability": 0.5, "xtc_threshold": 0.05},
        {"dynatemp_range": 0.5},
        {"top_n_sigma": 1.0},
        {
            "typical_p": 0.9,
            "xtc_probability": 0.5,
            "xtc_threshold": 0.02,
            "dynatemp_range": 0.7,
            "min_p": 0.01,
        },
    ],
    ids=str,
)
def test_many_filtered_draws_together_are_those_one_by_one(filters: dict[str, float]) -> None:
    settings = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, **filters}
    logits = logits_of(2, 32, 2048, "usual")
    samplers = [sampler({**settings, "seed": seed}, []) for seed in range(32)]
    for index in range(25):
        expected = [one.choose(row, index) for one, row in zip(samplers, logits, strict=True)]
        assert choose_tokens(logits, samplers, [index] * 32) == expected


def test_a_draw_does_not_depend_on_the_other_rows() -> None:
    settings = {"temperature": 1.0, "top_k": 40, "top_p": 0.95}
    logits = logits_of(1, 8, 2048, "usual")
    samplers = [sampler({**settings, "seed": seed}, []) for seed in range(8)]
    together = choose_tokens(logits, samplers, list(range(8)))
    order = [5, 0, 7, 2]
    others = choose_tokens(logits[order], [samplers[i] for i in order], order)
    assert others == [together[i] for i in order]


@given(
    st.sampled_from(VOCABULARIES),
    st.sampled_from(["usual", "ties", "flat", "few"]),
    st.integers(1, 50),
    st.sets(st.integers(0, 8), min_size=1),
)
def test_the_top_of_rows_is_that_of_each(vocabulary: int, kind: str, k: int, rows: set[int]) -> None:
    k = min(k, vocabulary)
    logits = logits_of(k, 9, vocabulary, kind)
    top = top_of_rows(logits, sorted(rows), k)
    for i, row in enumerate(sorted(rows)):
        assert top.ids[i].tolist() == top_ids(logits[row], k).tolist()
        assert top.logits[i].tolist() == logits[row, top.ids[i]].tolist()


def test_log_probabilities_are_those_of_the_softmax() -> None:
    logits = np.array([[9.0, 9.0, 9.0], [1.0, 2.0, 3.0]], np.float32)
    exact = np.log(np.exp([1.0, 2.0, 3.0]) / np.exp([1.0, 2.0, 3.0]).sum())
    (found,) = log_probabilities(logits, [1], [0], [2])
    assert found.chosen == pytest.approx(exact[0], abs=1e-6)
    assert [token for token, _ in found.top] == [2, 1]
    assert [logprob for _, logprob in found.top] == pytest.approx(exact[[2, 1]], abs=1e-6)


def test_each_row_gets_as_many_log_probabilities_as_it_wants() -> None:
    logits = logits_of(1, 4, 129, "usual")
    found = log_probabilities(logits, [0, 2, 3], [1, 1, 1], [0, 200, 5])
    assert [len(row.top) for row in found] == [0, 129, 5]
    assert sum(np.exp([logprob for _, logprob in found[1].top])) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("vocabulary", [7, 2048, 70_000])
def test_log_probabilities_do_not_depend_on_the_other_rows(vocabulary: int) -> None:
    logits = logits_of(1, 40, vocabulary, "usual")
    rows, chosen = list(range(40)), [row % 7 for row in range(40)]
    together = log_probabilities(logits, rows, chosen, [3] * 40)
    for row in (0, 17, 39):
        assert log_probabilities(logits, [row], [chosen[row]], [3]) == [together[row]]
