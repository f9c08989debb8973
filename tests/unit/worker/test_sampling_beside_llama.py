"""The worker draws tokens from the distribution of llama.cpp's own chain of samplers, on the same logits.

Chi-square tests with fixed seeds: each case is the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.llama_chain import LlamaChain, probabilities
from numpy.typing import NDArray

from inferflux.common.llama.vocab import Vocab
from inferflux.v1 import generation_pb2
from inferflux.worker.engine.sampling.breakers import Breakers, Spellings, find_breakers
from inferflux.worker.engine.sampling.dry import Dry
from inferflux.worker.engine.sampling.sampling import Sampler
from inferflux.worker.engine.sampling.sampling_rows import choose_tokens

pytestmark = pytest.mark.long

Logits = NDArray[np.float32]

DEMO_MODEL = Path(__file__).parents[3] / "models" / "inferflux-demo.gguf"
DRAWS = 1024
ROWS = 256
# Of one case in a hundred thousand of the chi-square distribution, nearly.
_DEVIATIONS = 4.3
DEFAULT_BREAKERS = ["\n", ":", '"', "*"]

OFF: dict[str, Any] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 1.0,
    "min_p": 0.0,
    "repeat_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "penalty_last_n": 64,
    "typical_p": 1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 64,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_n_sigma": 0.0,
    "seed": 1,
}
# The chain of most requests: 60 cases.
USUAL: list[dict[str, Any]] = [
    {"temperature": temperature, **filters, **penalties}
    for temperature in (0.4, 0.8, 1.5)
    for filters in (
        {},
        {"top_k": 0},
        {"top_k": 5},
        {"top_p": 0.9},
        {"top_k": 0, "top_p": 0.7},
        {"min_p": 0.05},
        {"top_k": 0, "min_p": 0.2},
        {"top_k": 20, "top_p": 0.95, "min_p": 0.05},
        {"top_k": 0, "top_p": 0.5, "min_p": 0.01},
        {"top_k": 1},
    )
    for penalties in ({}, {"repeat_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2})
]
TYPICAL: list[dict[str, Any]] = [
    {"typical_p": 0.9},
    {"typical_p": 0.5},
    {"typical_p": 0.2, "temperature": 1.5},
    {"typical_p": 0.95, "top_k": 0},
    {"typical_p": 0.3, "top_k": 0, "top_p": 0.9},
    {"typical_p": 0.6, "top_p": 0.8, "min_p": 0.1},
    {"typical_p": 0.0},
    {"typical_p": 0.7, "repeat_penalty": 1.5},
]
XTC: list[dict[str, Any]] = [
    {"xtc_probability": 1.0, "xtc_threshold": 0.1},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"xtc_probability": 0.3, "xtc_threshold": 0.02, "top_k": 0},
    {"xtc_probability": 0.5, "xtc_threshold": 0.1, "top_k": 0, "min_p": 0.02},
    {"xtc_probability": 0.8, "xtc_threshold": 0.03, "top_p": 0.9, "temperature": 1.4},
    {"xtc_probability": 0.5, "xtc_threshold": 0.0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.5},
    {"xtc_probability": 1.0, "xtc_threshold": 0.6},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05, "typical_p": 0.8},
]
DYNAMIC: list[dict[str, Any]] = [
    {"dynatemp_range": 0.5},
    {"dynatemp_range": 0.5, "dynatemp_exponent": 2.0, "temperature": 1.0},
    {"dynatemp_range": 2.0, "temperature": 0.5},
    {"dynatemp_range": 0.7, "top_k": 0, "temperature": 1.0},
    {"dynatemp_range": 0.3, "dynatemp_exponent": 0.5, "top_p": 0.9, "min_p": 0.02},
    {"dynatemp_range": 0.6, "typical_p": 0.9, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"dynatemp_range": 0.5, "temperature": 0.0},
    {"dynatemp_range": 0.5, "dynatemp_exponent": 0.0},
]
SIGMA: list[dict[str, Any]] = [
    {"top_n_sigma": 1.0},
    {"top_n_sigma": 1.5, "top_k": 0},
    {"top_n_sigma": 0.5, "top_p": 0.9},
    {"top_n_sigma": 1.2, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"top_n_sigma": -1.0},
]
DRY: list[dict[str, Any]] = [
    {"dry_multiplier": 0.8},
    {"dry_multiplier": 0.8, "dry_allowed_length": 0, "dry_base": 1.2},
    {"dry_multiplier": 2.0, "dry_penalty_last_n": 9},
    {"dry_multiplier": 0.5, "typical_p": 0.9, "xtc_probability": 0.3, "xtc_threshold": 0.05},
    {"dry_multiplier": 0.5, "dynatemp_range": 0.4, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.1},
]
NEW = [*TYPICAL, *XTC, *DYNAMIC, *SIGMA, *DRY]


@pytest.fixture(scope="module")
def vocab() -> Iterator[Vocab]:
    loaded = Vocab.load(DEMO_MODEL)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def spellings(vocab: Vocab) -> Spellings:
    return Spellings(map(vocab.spelling, range(vocab.size)))


def params_of(case: dict[str, Any], breakers: list[str] | None = None) -> generation_pb2.SamplingParams:
    made = generation_pb2.SamplingParams(**{**OFF, **case})
    made.dry_sequence_breakers.texts.extend(DEFAULT_BREAKERS if breakers is None else breakers)
    return made


def known(breakers: Breakers) -> Future[Breakers]:
    future: Future[Breakers] = Future()
    future.set_result(breakers)
    return future


def logits_of(vocab: Vocab, seed: int) -> Logits:
    """A few likely tokens and a long tail, as a model gives them."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal(vocab.size, np.float32) * np.float32(1.5)
    logits[rng.permutation(vocab.size)[:12]] += np.linspace(4, 8, 12, dtype=np.float32)
    return logits


def history_of(logits: Logits, spread: int = 5) -> list[int]:
    """Tokens that are likely now, so that penalties show, and that repeat themselves."""
    likely = np.argsort(-logits)[:spread]
    return [int(likely[i]) for i in [0, 1, 2, 3, 0, 1, 2, 4, 0, 1, 2, 3, 4, 4, 0, 1, 2]]


def frequencies(sampler: Sampler, logits: Logits) -> NDArray[np.int64]:
    """How often each token is drawn: rows that are sampled together, each with an index of its own."""
    rows = np.tile(logits, (ROWS, 1))
    counts = np.zeros(logits.shape[0], np.int64)
    for first in range(0, DRAWS, ROWS):
        tokens = choose_tokens(rows, [sampler] * ROWS, range(first, first + ROWS))
        np.add.at(counts, tokens, 1)
    return counts


def chi_square_deviations(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
    """Standard deviations of the chi-square statistic above its mean; rare tokens count as one."""
    is_rare = expected < 5
    observed = np.append(counts[~is_rare], counts[is_rare].sum())
    wanted = np.append(expected[~is_rare], expected[is_rare].sum())
    is_drawn = wanted > 0
    freedom = max(int(is_drawn.sum()) - 1, 1)
    statistic = ((observed - wanted)[is_drawn] ** 2 / wanted[is_drawn]).sum()
    return float((statistic - freedom) / math.sqrt(2 * freedom))


def check_draws(vocab: Vocab, spellings: Spellings, case: dict[str, Any], seed: int) -> None:
    params = params_of({**case, "seed": seed})
    logits = logits_of(vocab, seed)
    history = history_of(logits)
    expected = probabilities(vocab, params, history, logits)
    breakers = find_breakers(params.dry_sequence_breakers.texts, spellings, vocab)
    counts = frequencies(Sampler(params, history, known(breakers)), logits)
    assert not counts[expected == 0.0].any()
    assert chi_square_deviations(counts, expected * DRAWS) < _DEVIATIONS


@pytest.mark.parametrize("number", range(len(USUAL)))
def test_usual_requests_draw_as_llamas_chain(vocab: Vocab, spellings: Spellings, number: int) -> None:
    check_draws(vocab, spellings, USUAL[number], seed=number)


@pytest.mark.parametrize("case", NEW, ids=str)
def test_every_other_filter_draws_as_llamas_chain(
    vocab: Vocab, spellings: Spellings, case: dict[str, Any]
) -> None:
    check_draws(vocab, spellings, case, seed=100 + NEW.index(case))


def test_the_chi_square_test_sees_another_distribution(vocab: Vocab) -> None:
    logits = logits_of(vocab, 1)
    expected = probabilities(vocab, params_of({}), [], logits)
    for other in ({"temperature": 0.9}, {"top_k": 6}, {"xtc_probability": 0.3}, {"typical_p": 0.9}):
        counts = frequencies(Sampler(params_of(other), []), logits)
        is_impossible = bool(counts[expected == 0.0].any())
        assert is_impossible or chi_square_deviations(counts, expected * DRAWS) > _DEVIATIONS


@pytest.mark.parametrize(
    "case", [{}, *TYPICAL, *XTC[:1], *XTC[6:8], *SIGMA[:3], {"dry_multiplier": 1.0}], ids=str
)
def test_at_temperature_zero_the_token_is_llamas(
    vocab: Vocab, spellings: Spellings, case: dict[str, Any]
) -> None:
    for seed in range(20):
        params = params_of({**case, "temperature": 0.0})
        logits = logits_of(vocab, seed)
        expected = probabilities(vocab, params, history_of(logits), logits)
        breakers = find_breakers(DEFAULT_BREAKERS, spellings, vocab)
        chosen = Sampler(params, history_of(logits), known(breakers)).choose(logits, 0)
        assert chosen == int(expected.argmax())


BREAKERS = [
    [],
    DEFAULT_BREAKERS,
    [" and", "the cat", "o"],
    ["the", "he", "t", "the "],
    ["é", "日本"],
    ["a" * 40],
]


@pytest.mark.parametrize("texts", BREAKERS, ids=[" ".join(texts) or "none" for texts in BREAKERS])
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"dry_allowed_length": 0},
        {"dry_allowed_length": 1, "dry_base": 1.0},
        {"dry_base": 3.5, "dry_penalty_last_n": 12},
        {"dry_allowed_length": 4, "dry_penalty_last_n": 200},
    ],
    ids=str,
)
def test_dry_subtracts_what_llamas_does(
    vocab: Vocab, spellings: Spellings, texts: list[str], shape: dict[str, Any]
) -> None:
    params = params_of({"dry_multiplier": 0.7, "temperature": 1.0, "top_k": 0, **shape}, texts)
    breakers = known(find_breakers(texts, spellings, vocab))
    rng = np.random.default_rng(len(str(shape)) + len(texts))
    words = vocab.tokenize(
        b'the cat and the other: "a cat"\n and o the ca\xc3\xa9', add_special=False, parse_special=False
    )
    zeros = np.zeros(vocab.size, np.float32)
    n_penalized = 0
    for n in (0, 1, 3, 10, 40, 150):
        few = rng.choice(words, size=rng.integers(2, 6))
        history = rng.choice(few, size=n).tolist() + words[: n // 2]
        for following in ([], [*few.tolist(), *few.tolist()], words):
            dry = Dry(params, history, breakers)
            for token in following:
                dry.accept(token)
                dry.penalties()
            chain = LlamaChain(vocab, params, [*history, *following])
            ids, logits = chain.logits(zeros)
            chain.close()
            expected = zeros.copy()
            expected[ids] = logits
            penalties = dry.penalties()
            ours = zeros.copy()
            ours[penalties.ids] -= penalties.amounts
            np.testing.assert_allclose(ours, expected, rtol=1e-6)
            n_penalized += penalties.ids.shape[0]
    assert n_penalized or texts not in ([], DEFAULT_BREAKERS)


def test_dry_sees_a_repetition_of_thousands_of_tokens_as_llamas_does(vocab: Vocab) -> None:
    params = params_of({"dry_multiplier": 0.7, "dry_penalty_last_n": 5000, "top_k": 0}, [])
    history = [7, 8, 9] * 1500
    dry = Dry(params, history, known({}))
    chain = LlamaChain(vocab, params, history)
    ids, logits = chain.logits(np.zeros(vocab.size, np.float32))
    chain.close()
    penalized = {int(token): float(x) for token, x in zip(ids, logits, strict=True) if x}
    found = dry.penalties()
    assert found.ids.tolist() == list(penalized) == [7]
    assert found.amounts[0] > 1e37
