"""Masks over logits: what may not come next has no chance, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.v1 import generation_pb2
from inferflux.worker.engine.constraints.constraints import Mask
from inferflux.worker.engine.sampling.sampling import Sampler
from inferflux.worker.engine.sampling.sampling_rows import BAD, choose_tokens
from inferflux.worker.engine.step.masks import MaskedRow, Masks


class Allows:
    """A constraint that always allows the same tokens."""

    is_ready = True
    is_over = False

    def __init__(self, allowed: set[int]) -> None:
        self.allowed = allowed
        self.error = ""

    def fill(self, mask: Mask) -> bool:
        mask[:] = 0
        for token in self.allowed:
            mask.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)
        self.error = "" if self.allowed else "nothing may follow"
        return bool(self.allowed)

    def accept(self, token: int) -> None: ...

    def forced(self) -> list[int]:
        return []

    def look_ahead(self, token: int) -> None: ...

    def look_back(self) -> None: ...

    def check(self, _answer: str) -> None: ...

    def close(self) -> None: ...


@given(
    vocabulary=st.sampled_from([1, 7, 8, 31, 32, 33, 63, 100, 2048]),
    seed=st.integers(0, 2**32),
    is_read_after=st.booleans(),
)
def test_what_is_masked_is_minus_infinity_and_the_rest_is_as_before(
    vocabulary: int, seed: int, is_read_after: bool
) -> None:
    draw = np.random.default_rng(seed)
    logits = draw.normal(0, 5, (3, vocabulary)).astype(np.float32)
    before = logits.copy()
    allowed = {int(i) for i in np.flatnonzero(draw.random(vocabulary) < 0.5)} or {0}
    row = MaskedRow(1, Allows(allowed), is_read_after=is_read_after)
    with Masks().applied(logits, [row]):
        for token in range(vocabulary):
            assert logits[1, token] == (before[1, token] if token in allowed else -np.inf)
        assert (logits[[0, 2]] == before[[0, 2]]).all()
    assert (logits[[0, 2]] == before[[0, 2]]).all()
    if is_read_after:
        assert (logits == before).all()


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_k": 5, "seed": 3},
        {"temperature": 2.0, "top_k": 0, "top_p": 0.5, "min_p": 0.3, "seed": 4},
        {"temperature": 1.0, "top_k": 0, "repeat_penalty": 1.8, "presence_penalty": 2.0, "penalty_last_n": 9},
        {"temperature": 1.0, "logit_bias": dict.fromkeys(range(0, 64, 2), 100.0), "seed": 5},
    ],
)
def test_no_parameter_of_sampling_brings_a_masked_token_back(params: dict[str, object]) -> None:
    draw = np.random.default_rng(1)
    masks = Masks()
    for index in range(50):
        logits = draw.normal(0, 5, (4, 64)).astype(np.float32)
        constraint = Allows({int(t) for t in draw.choice(64, 3, replace=False)})
        samplers = [Sampler(generation_pb2.SamplingParams(**params), [1, 2, 3]) for _ in range(4)]  # type: ignore[arg-type]
        rows = [MaskedRow(row, constraint, is_read_after=False) for row in range(4)]
        with masks.applied(logits, rows):
            assert set(choose_tokens(logits, samplers, [index] * 4)) <= constraint.allowed


def test_where_nothing_may_follow_the_row_alone_is_bad() -> None:
    logits = np.ones((2, 40), np.float32)
    nothing = Allows(set())
    samplers = [Sampler(generation_pb2.SamplingParams(temperature=0.0), []) for _ in range(2)]
    with Masks().applied(logits, [MaskedRow(0, nothing, is_read_after=False)]):
        tokens = choose_tokens(logits, samplers, [0, 0])
    assert tokens[0] == BAD
    assert tokens[1] != BAD
    assert nothing.error


class Counts(Allows):
    """Allows the token after the last one."""

    def __init__(self) -> None:
        super().__init__({0})

    def look_ahead(self, token: int) -> None:
        self.allowed = {token + 1}

    def look_back(self) -> None:
        self.allowed = {0}


def test_a_drafted_row_is_masked_by_what_follows_the_tokens_before_it() -> None:
    logits = np.zeros((4, 40), np.float32)
    one, other = Counts(), Counts()
    rows = [
        MaskedRow(0, one, is_read_after=False),
        MaskedRow(1, one, is_read_after=False, drafted=7),
        MaskedRow(2, one, is_read_after=False, drafted=8),
        MaskedRow(3, other, is_read_after=False),
    ]
    with Masks().applied(logits, rows):
        assert [np.flatnonzero(np.isfinite(row)).tolist() for row in logits] == [[0], [8], [9], [0]]
    assert (one.allowed, other.allowed) == ({0}, {0})
