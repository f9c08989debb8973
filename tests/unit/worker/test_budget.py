"""The step budget follows the times it measures."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.engine.budget import StepBudget, StepTime

# Seconds of a step by its tokens. A single token takes another path, as in llama.cpp.
Cost = Callable[[int], float]


def cpu(n: int) -> float:
    return 0.004 if n == 1 else 0.009 + 0.00093 * n


def gpu(n: int) -> float:
    return 0.020 + 0.00001 * n


def settled(
    cost: Cost,
    *,
    n_decoding: int = 4,
    stretch: float = 2.5,
    limit_s: float = 10.0,
    mixed_tokens: int = 2048,
) -> StepBudget:
    """A budget that has seen the model warm up, decode, and prefill for a while."""
    budget = StepBudget(2048, stretch, limit_s, mixed_tokens)
    for n in (16, 64):
        budget.observe(n, 0, cost(n))
    budget.observe(0, 1, cost(1))
    for _ in range(10):
        budget.observe(0, n_decoding, cost(n_decoding))
    for _ in range(60):
        n = budget.tokens(n_decoding)
        budget.observe(n, n_decoding, cost(n_decoding + n))
    return budget


@pytest.mark.parametrize("cost", [cpu, gpu])
def test_a_mixed_step_takes_about_the_stretch_of_a_decode_step(cost: Cost) -> None:
    budget = settled(cost)
    step_s = cost(4 + budget.tokens(4))
    assert 2.0 * cost(4) < step_s <= 2.55 * cost(4)


def test_where_prefill_is_nearly_free_the_budget_reaches_the_batch() -> None:
    assert settled(lambda _: 0.02).tokens(4) == 2048 - 4


def test_prompts_advance_even_where_prefill_is_slow() -> None:
    assert settled(lambda n: 0.001 if n <= 4 else float(n)).tokens(4) >= 1


def test_many_waiting_prompts_stretch_a_step_further_than_one() -> None:
    budget = settled(cpu, n_decoding=1)
    assert budget.tokens(1, n_waiting=7) > 2 * budget.tokens(1, n_waiting=1)
    assert settled(cpu).tokens(4, n_waiting=1) < settled(cpu).tokens(4, n_waiting=2)


def test_no_step_is_longer_than_the_limit_even_when_nothing_decodes() -> None:
    budget = settled(cpu, limit_s=0.1)
    assert cpu(budget.tokens(0)) == pytest.approx(0.1, rel=0.1)


def test_it_follows_when_prefill_gets_dearer_with_depth() -> None:
    budget = settled(cpu)
    before = budget.tokens(4)

    def deep(n: int) -> float:
        return 0.009 + 0.0018 * n

    for _ in range(150):
        n = budget.tokens(4)
        budget.observe(n, 4, deep(n + 4))
    assert budget.tokens(4) < before
    assert deep(budget.tokens(4) + 4) < 1.2 * 2.5 * cpu(4)


def test_one_stalled_step_changes_little() -> None:
    budget = settled(cpu)
    before = budget.tokens(4)
    budget.observe(before, 4, 5.0)
    assert budget.tokens(4) == pytest.approx(before, rel=0.6)


@given(st.lists(st.tuples(st.integers(1, 2048), st.floats(1e-6, 10.0)), max_size=50), st.integers(0, 256))
def test_whatever_was_measured_the_budget_is_between_one_and_the_batch(
    steps: list[tuple[int, float]], n_decoding: int
) -> None:
    budget = StepBudget(2048, 2.5, 0.2, 2048)
    for n, seconds in steps:
        budget.observe(n, n % 9, seconds)
    assert 1 <= budget.tokens(n_decoding) <= 2048 - n_decoding


def test_a_step_that_also_decodes_may_have_a_bound_of_its_own() -> None:
    budget = settled(gpu, mixed_tokens=63)
    assert budget.tokens(4) == 59
    assert budget.tokens(0) == 2048


@pytest.mark.parametrize("n_decoding", [60, 63, 200])
def test_that_bound_does_not_starve_prompts_where_many_decode(n_decoding: int) -> None:
    assert settled(gpu, n_decoding=n_decoding, mixed_tokens=63).tokens(n_decoding) >= 8


def test_the_line_is_found() -> None:
    line = StepTime()
    for n in (4, 20, 9, 33, 16):
        line.observe(n, 0.01 + 0.002 * n)
    assert line.seconds_of(100) == pytest.approx(0.21)
    assert line.tokens_within(0.05) == pytest.approx(20, abs=1)
