"""Decoding sequences always get their token; prompts share what the budget leaves."""

from __future__ import annotations

import numpy as np
import pytest
from harness.sequences import new_sequence
from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.engine.budget import StepBudget
from inferflux.worker.engine.planner import (
    Planner,
    StepPlan,
    even_share,
    first_in_line,
    plan_of,
    plan_step,
    split,
)
from inferflux.worker.engine.sequence import Sequence


def sequence(slot: int, pending: int, *, decoding: bool = False, rank: float = 0.0) -> Sequence:
    made = new_sequence(slot, np.zeros(pending + 10, np.int32), prompt_tokens=pending, rank=rank)
    if decoding:
        made.position, made.first_token_s = pending - 1, 1.0
    return made


@given(st.integers(0, 8), st.lists(st.integers(1, 100), max_size=6), st.integers(0, 150))
def test_every_decoding_sequence_is_in_and_prompts_stay_within_the_budget(
    n_decoding: int, prompts: list[int], budget: int
) -> None:
    decoding = [sequence(i, 1, decoding=True) for i in range(n_decoding)]
    prefilling = [sequence(10 + i, n) for i, n in enumerate(prompts)]
    plan = plan_step(decoding, prefilling, budget)
    assert [s.sequence for s in plan.decoding] == decoding
    assert plan.n_prefill == min(budget, sum(prompts))
    assert all(s.n > 0 for s in plan.prefilling)
    for share in plan.prefilling:
        assert share.wants_logits == (share.n == share.sequence.n_pending)
    assert [s.wants_logits for s in plan.prefilling[:-1]] == [True] * max(len(plan.prefilling) - 1, 0)


def planner() -> Planner:
    """One whose steps may hold about 40 prompt tokens beside streams, and as many apart."""
    budget = StepBudget(256, 2.0, 10.0)
    for n in (16, 64, 32):
        budget.observe(n, 0, 0.001 * n)
        budget.observe(n, 0, 0.001 * n, is_apart=True)
    for n in (1, 2, 3):
        budget.observe(0, n, 0.040)
    return Planner(budget)


def kinds(plans: list[StepPlan]) -> list[tuple[bool, bool]]:
    """(holds streams, holds prompts) of each."""
    return [(bool(plan.decoding), bool(plan.prefilling)) for plan in plans]


@pytest.mark.parametrize(("n_streams", "prompt"), [(2, 600), (6, 300)])
def test_a_prompt_of_several_steps_is_computed_apart_in_turn_with_the_streams(
    n_streams: int, prompt: int
) -> None:
    plans, decoding = planner(), [sequence(i, 1, decoding=True, rank=-1) for i in range(n_streams)]
    steps = [plans.next(decoding, [sequence(9, prompt)], 1000) for _ in range(4)]
    assert kinds(steps) == [(False, True), (True, False)] * 2
    assert [step.is_apart for step in steps] == [True, False] * 2
    assert steps[0].n_prefill < 200  # the streams wait for it


def test_a_long_prompt_makes_shorter_gaps_up_to_its_end() -> None:
    plans, decoding = planner(), [sequence(i, 1, decoding=True, rank=-1) for i in range(2)]
    short = plans.next(decoding, [sequence(9, 300)], 1000)
    plans.next(decoding, [sequence(9, 300)], 1000)
    long = sequence(8, 900)
    long.position, long.is_apart = 700, True
    assert plans.next(decoding, [long], 1000).n_prefill < 0.7 * short.n_prefill


@given(st.lists(st.integers(1, 900), min_size=1, max_size=5), st.integers(1, 300))
def test_steps_of_an_even_share_are_as_few_as_they_can_be(prompts: list[int], most: int) -> None:
    fewest, n_steps, left = -(-sum(prompts) // most), 0, list(prompts)
    while left:
        share = even_share(left, most)
        assert share <= most
        assert share >= left[0] or left[0] > most
        n_steps += 1
        while left and share:
            took = min(share, left[0])
            share -= took
            left = [left[0] - took, *left[1:]] if took < left[0] else left[1:]
    assert n_steps == fewest


@pytest.mark.parametrize(("prompts", "share"), [([128], 64), ([120, 60], 60), ([80, 20], 80), ([40], 40)])
def test_an_even_share_leaves_no_small_rest_and_divides_no_prompt_for_another(
    prompts: list[int], share: int
) -> None:
    assert even_share(prompts, 82) == share


def test_what_a_prompt_takes_apart_is_divided_evenly() -> None:
    plans, decoding = planner(), [sequence(i, 1, decoding=True, rank=-1) for i in range(6)]
    prompt, shares = sequence(9, 300), []
    while prompt.n_pending:
        step = plans.next(decoding, [prompt], 1000)
        shares += [share.n for share in step.prefilling]
        prompt.position, prompt.is_apart = sum(shares), True
    assert len(shares) > 2
    assert max(shares) - min(shares) <= 2


def test_a_prompt_more_urgent_than_every_stream_is_computed_apart_as_fast_as_may_be() -> None:
    plans, decoding = planner(), [sequence(i, 1, decoding=True, rank=-1) for i in range(6)]
    urgent = sequence(9, 200, rank=-9)
    steps = [plans.next(decoding, [urgent, sequence(10, 200, rank=-3)], 1000) for _ in range(2)]
    assert [step.is_apart for step in steps] == [True, False]
    assert steps[0].prefilling[0].sequence is urgent
    assert steps[0].prefilling[0].wants_logits
    decoding.append(sequence(8, 1, decoding=True, rank=-10))
    heedful = plans.next(decoding, [urgent], 1000)
    assert heedful.n_prefill < steps[0].n_prefill


def test_a_prompt_that_is_complete_in_a_step_goes_beside_the_streams() -> None:
    plans, decoding = planner(), [sequence(0, 1, decoding=True), sequence(2, 1, decoding=True)]
    steps = [plans.next(decoding, [sequence(1, 30)], 1000) for _ in range(2)]
    assert kinds(steps) == [(True, True)] * 2
    assert not any(step.is_apart for step in steps)
    assert all(step.prefilling[0].wants_logits for step in steps)


def test_prompts_have_every_step_while_nothing_decodes() -> None:
    plans = planner()
    steps = [plans.next([], [sequence(1, 20_000)], 100_000) for _ in range(3)]
    assert kinds(steps) == [(False, True)] * 3
    assert all(step.is_apart for step in steps)


def test_without_a_context_for_prompts_they_share_every_step() -> None:
    plans = planner()
    steps = [plans.next([sequence(0, 1, decoding=True)], [sequence(1, 200)], 0) for _ in range(3)]
    assert kinds(steps) == [(True, True)] * 3


def test_what_was_begun_beside_the_streams_goes_on_there() -> None:
    begun = sequence(1, 900)
    begun.position = 50
    assert not planner().next([sequence(0, 1, decoding=True)], [begun], 1000).is_apart


def test_what_was_begun_apart_goes_on_there_however_little_is_left_and_room() -> None:
    begun = sequence(1, 200)
    begun.position, begun.is_apart = 199, True
    plan = planner().next([sequence(0, 1, decoding=True)], [begun], 0)
    assert plan.is_apart
    assert plan.prefilling[0].wants_logits


def test_a_prompt_has_the_first_step_of_each_pair() -> None:
    plans, decoding = planner(), [sequence(0, 1, decoding=True)]
    assert plans.next(decoding, [sequence(1, 900)], 1000).is_apart
    assert not plans.next(decoding, [], 1000).is_apart  # the prompt was cancelled
    assert plans.next(decoding, [sequence(2, 900)], 1000).is_apart


prompts_in_line = st.lists(
    st.tuples(st.integers(1, 900), st.sampled_from(["new", "begun", "apart"])), min_size=1, max_size=8
)


@given(prompts_in_line, st.integers(1, 200), st.integers(0, 3000))
def test_a_line_is_of_one_place_and_nobody_is_passed_over(
    prompts: list[tuple[int, str]], tokens: int, room: int
) -> None:
    prefilling = [sequence(i, n + 1) for i, (n, _) in enumerate(prompts)]
    for one, (_, kind) in zip(prefilling, prompts, strict=True):
        one.position = 0 if kind == "new" else 1
        one.is_apart = kind == "apart"
    line, are_apart = first_in_line(prefilling, tokens, room)
    assert line == prefilling[: len(line)] != []
    new = [s for s in line if s.position == 0]
    if are_apart:
        assert all(s.is_apart or s.position == 0 for s in line)
        assert sum(s.n_pending for s in new) <= room
    else:
        assert not any(s.is_apart for s in line)
        # Who is given a part and not all of it in this step would have found no room apart.
        for share in plan_step([], line, tokens).prefilling:
            one = share.sequence
            assert share.wants_logits or one.position or one.n_pending > room


def test_the_more_urgent_prompt_goes_first_then_the_earlier() -> None:
    first, urgent, second = sequence(0, 5), sequence(2, 5, rank=-9), sequence(1, 5)
    _, prefilling = split([second, first, urgent])
    assert prefilling == [urgent, first, second]


def test_what_was_given_up_is_prefilled_again() -> None:
    given_up = sequence(0, 5, decoding=True)
    given_up.position = 0
    assert split([given_up]) == ([], [given_up])
    assert plan_of([(given_up, 5)]).prefilling[0].wants_logits


def test_what_was_given_up_is_not_decoded_before_it_is_with_the_streams_again() -> None:
    given_up = sequence(0, 5, decoding=True)
    given_up.is_apart = True  # all but its last token is computed there
    assert split([given_up]) == ([], [given_up])


def test_a_plan_of_grants_tells_tokens_from_prompts() -> None:
    plan = plan_of([(sequence(0, 5), 3), (sequence(1, 5, decoding=True), 1)])
    assert [(s.sequence.seq_id, s.n, s.wants_logits) for s in plan.decoding] == [(1, 1, True)]
    assert [(s.sequence.seq_id, s.n, s.wants_logits) for s in plan.prefilling] == [(0, 3, False)]
    assert plan.n_tokens == 4
