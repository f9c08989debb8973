"""The step budget follows the times it measures."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.engine.plan.budget import LONG_STEP, StepBudget, StepTime
from inferflux.worker.engine.plan.speculation import Candidate, rows_of

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
    max_itl_factor: float = 2.5,
    limit_s: float = 10.0,
) -> StepBudget:
    """A budget that has seen the model warm up, decode, and prefill beside that for a while."""
    budget = StepBudget(2048, max_itl_factor, limit_s)
    for n in (16, 64):
        budget.observe(n, 0, cost(n))
    budget.observe(0, 1, cost(1))
    for _ in range(10):
        budget.observe(0, n_decoding, cost(n_decoding))
    for _ in range(60):
        n = budget.mixed(n_decoding)
        budget.observe(n, n_decoding, cost(n_decoding + n))
    return budget


@pytest.mark.parametrize("cost", [cpu, gpu])
def test_a_mixed_step_takes_about_the_stretch_of_a_decode_step(cost: Cost) -> None:
    budget = settled(cost)
    step_s = cost(4 + budget.mixed(4))
    assert 2.0 * cost(4) < step_s <= 2.55 * cost(4)


def test_where_prefill_is_nearly_free_the_budget_reaches_the_batch() -> None:
    assert settled(lambda _: 0.02).mixed(4) == 2048 - 4


def test_prompts_advance_even_where_prefill_is_slow() -> None:
    assert settled(lambda n: 0.001 if n <= 4 else float(n)).mixed(4) >= 1


def test_many_waiting_prompts_stretch_a_step_further_than_one() -> None:
    budget = settled(cpu, n_decoding=1)
    assert budget.mixed(1, n_waiting=7) > 2 * budget.mixed(1, n_waiting=1)
    assert settled(cpu).mixed(4, n_waiting=1) < settled(cpu).mixed(4, n_waiting=2)


def test_a_step_need_not_be_shorter_than_anyone_notices() -> None:
    def fast(n: int) -> float:
        return 0.0005 + 0.00005 * n

    assert fast(4 + settled(fast).mixed(4)) == pytest.approx(0.015, rel=0.1)
    in_context = alternating(fast, n_decoding=4).in_prefill_context(4)
    assert fast(in_context) + fast(4) == pytest.approx(0.015, rel=0.1)


def test_a_prompt_of_many_steps_makes_half_of_the_gap() -> None:
    budget = settled(cpu, max_itl_factor=6.0)
    assert cpu(4 + budget.mixed(4, is_long=True)) == pytest.approx(3.0 * cpu(4), rel=0.1)
    assert settled(cpu, max_itl_factor=1.0).mixed(4, is_long=True) >= 1


def test_no_step_is_longer_than_the_limit_even_when_nothing_decodes() -> None:
    budget = settled(cpu, limit_s=0.1)
    assert cpu(budget.mixed(0)) == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_delays_that_every_step_has_do_not_cut_prompts_into_the_smallest_chunks(seed: int) -> None:
    delays = random.Random(seed)

    def on_busy_cores(n: int) -> float:
        return 0.0006 + 0.00005 * n + delays.expovariate(1 / 0.3)

    budget = StepBudget(2048, 5.0, 0.2)
    for n in (16, 64, 16, 64):
        budget.observe(n, 0, on_busy_cores(n))
    for _ in range(150):
        budget.observe(0, 8, on_busy_cores(8))
    left, steps = 8 * 48, 0
    while left > 0:
        n = min(budget.mixed(0, n_waiting=8), left)
        budget.observe(n, 0, on_busy_cores(n))
        left, steps = left - n, steps + 1
    assert steps <= 12  # 48 steps of the smallest chunk


def test_where_the_fixed_part_alone_exceeds_the_limit_half_of_a_step_goes_into_tokens() -> None:
    budget = settled(lambda n: 0.5 + 0.001 * n, limit_s=0.2)
    assert budget.mixed(0) == pytest.approx(500, abs=5)
    assert budget.mixed(4) == pytest.approx(500, abs=10)


def test_it_follows_when_prefill_gets_dearer_with_depth() -> None:
    budget = settled(cpu)
    before = budget.mixed(4)

    def deep(n: int) -> float:
        return 0.009 + 0.0018 * n

    for _ in range(150):
        n = budget.mixed(4)
        budget.observe(n, 4, deep(n + 4))
    assert budget.mixed(4) < before
    assert deep(budget.mixed(4) + 4) < 1.2 * 2.5 * cpu(4)


def test_one_stalled_step_changes_little() -> None:
    budget = settled(cpu)
    before = budget.mixed(4)
    budget.observe(before, 4, 5.0)
    assert budget.mixed(4) == pytest.approx(before, rel=0.6)


@given(
    st.lists(st.tuples(st.integers(0, 2048), st.floats(1e-6, 10.0)), max_size=50),
    st.integers(0, 256),
    st.integers(1, 300),
)
def test_whatever_was_measured_the_budget_is_between_one_and_the_batch(
    steps: list[tuple[int, float]], n_decoding: int, n_waiting: int
) -> None:
    budget = StepBudget(2048, 2.5, 0.2)
    budget.know_rows({1: 0.01, 8: 0.02})
    for n, seconds in steps:
        budget.observe(n, n % 9, seconds)
        budget.observe(n + 1, 0, seconds, in_prefill_context=True)
    assert 1 <= budget.mixed(n_decoding, n_waiting) <= 2048 - n_decoding
    rows = rows_of([Candidate([0.9], 20)] * 3)
    assert 0 <= len(budget.rows_worth(n_decoding + 1, rows, 40).rows) <= 40
    assert 1 <= budget.in_prefill_context(n_decoding, n_waiting) <= 2048


def alternating(cost: Cost, *, n_decoding: int, limit_s: float = 10.0) -> StepBudget:
    """A budget for which decodes and prefills alternate."""
    budget = StepBudget(2048, 3.0, limit_s)
    for n in (16, 64, 16, 64):
        budget.observe(n, 0, cost(n), in_prefill_context=True)
    for _ in range(60):
        budget.observe(0, n_decoding, cost(n_decoding))
        n = budget.in_prefill_context(n_decoding)
        budget.observe(n, 0, cost(n), in_prefill_context=True)
    return budget


def test_prefill_in_its_own_context_and_a_decode_step_stay_within_the_itl_factor_together() -> None:
    budget = alternating(cpu, n_decoding=4)
    assert cpu(budget.in_prefill_context(4)) + cpu(4) == pytest.approx(3.0 * cpu(4), rel=0.1)
    assert budget.in_prefill_context(4, n_waiting=6) > 2 * budget.in_prefill_context(4)


def test_prefill_in_its_own_context_keeps_the_limit_where_nothing_decodes() -> None:
    assert cpu(alternating(cpu, n_decoding=4, limit_s=0.1).in_prefill_context(0)) == pytest.approx(
        0.1, rel=0.1
    )


def test_a_long_step_takes_some_times_the_limit_and_no_more_tokens_than_can_be_given_up() -> None:
    def long_tokens(most: int) -> int:
        budget = StepBudget(2048, 3.0, 0.1, long_step_tokens=most)
        for n in (16, 64, 16, 64):
            budget.observe(n, 0, cpu(n), in_prefill_context=True)
        return budget.in_long_step()

    assert cpu(long_tokens(2048)) == pytest.approx(LONG_STEP * 0.1, rel=0.1)
    assert long_tokens(300) == 300
    assert long_tokens(0) == 0


def test_prefill_in_its_own_context_says_nothing_of_mixed_batches() -> None:
    budget = settled(cpu)
    before = budget.mixed(4)
    for _ in range(100):
        budget.observe(64, 0, 1.0, in_prefill_context=True)
    assert budget.mixed(4) == before
    assert budget.in_prefill_context(4) == 8


def test_the_line_is_found() -> None:
    line = StepTime()
    for n in (4, 20, 9, 33, 16):
        line.observe(n, 0.01 + 0.002 * n)
    assert line.seconds_of(100) == pytest.approx(0.21)
    assert line.tokens_within(0.05) == pytest.approx(20, abs=1)


def test_sizes_that_are_alike_leave_the_cost_of_a_token_as_it_was() -> None:
    line = StepTime()
    for n in (16, 64, 16, 64):
        line.observe(n, 0.01 + 0.001 * n)
    for delay_s in (0.0, 0.3):
        for n in (8, 8, 8, 7, 3) * 40:
            line.observe(n, delay_s + 0.01 + 0.001 * n)
    assert line.seconds_of(108) - line.seconds_of(8) == pytest.approx(0.1, rel=0.2)
    assert line.fixed_s == pytest.approx(0.31, rel=0.1)


def test_a_token_costs_at_most_twice_what_the_fastest_recent_step_took_per_token() -> None:
    line = StepTime()
    for n, seconds in ((16, 0.02), (64, 1.0), (64, 0.08)):
        line.observe(n, seconds)
    assert line.seconds_of(101) - line.seconds_of(1) <= 2 * 100 * 0.08 / 64 + 1e-9


def test_a_step_that_costs_the_same_at_any_size_has_free_tokens() -> None:
    line = StepTime()
    for n in (16, 64, 16, *[8] * 200):
        line.observe(n, 0.02)
    assert line.tokens_within(0.03) >= 10**6
