"""Decoding sequences always get their token; prompts share what the budget leaves."""

from __future__ import annotations

import numpy as np
import pytest
from harness.sequences import new_sequence
from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.engine.plan.budget import StepBudget
from inferflux.worker.engine.plan.planner import (
    Planner,
    StepPlan,
    plan_of,
    plan_step,
    select_prefills,
    split,
)
from inferflux.worker.engine.plan.sequence import Phase, Sequence


def sequence(slot: int, pending: int, *, decoding: bool = False, urgency_key: float = 0.0) -> Sequence:
    made = new_sequence(
        slot, np.zeros(pending + 10, np.int32), prompt_tokens=pending, urgency_key=urgency_key
    )
    if decoding:
        made.position, made.phase = pending - 1, Phase.DECODE
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
    for part in plan.prefilling:
        assert part.n_logits == (part.n == part.sequence.n_pending)
    assert [s.n_logits for s in plan.prefilling[:-1]] == [1] * max(len(plan.prefilling) - 1, 0)


def planner() -> Planner:
    """One whose steps may hold about 40 prompt tokens, in mixed batches and in the prefill context."""
    budget = StepBudget(256, 2.0, 10.0)
    for n in (16, 64, 32):
        budget.observe(n, 0, 0.001 * n)
        budget.observe(n, 0, 0.001 * n, in_prefill_context=True)
    for n in (1, 2, 3):
        budget.observe(0, n, 0.040)
    return Planner(budget)


def kinds(plans: list[StepPlan]) -> list[tuple[bool, bool]]:
    """(holds decodes, holds prompts) of each."""
    return [(bool(plan.decoding), bool(plan.prefilling)) for plan in plans]


@pytest.mark.parametrize(("n_decodes", "prompt"), [(2, 600), (6, 300)])
def test_a_prompt_of_several_steps_is_computed_in_the_prefill_context_in_turn_with_decodes(
    n_decodes: int, prompt: int
) -> None:
    plans, decoding = planner(), [sequence(i, 1, decoding=True, urgency_key=-1) for i in range(n_decodes)]
    steps = [plans.next(decoding, [sequence(9, prompt)], 1000) for _ in range(4)]
    assert kinds(steps) == [(False, True), (True, False)] * 2
    assert [step.in_prefill_context for step in steps] == [True, False] * 2
    assert steps[0].n_prefill < 200  # the decodes wait for it


def test_a_long_prompt_makes_shorter_gaps_up_to_its_end() -> None:
    plans, decoding = planner(), [sequence(i, 1, decoding=True, urgency_key=-1) for i in range(2)]
    short = plans.next(decoding, [sequence(9, 300)], 1000)
    plans.next(decoding, [sequence(9, 300)], 1000)
    long = sequence(8, 900)
    long.position, long.in_prefill_context = 700, True
    assert plans.next(decoding, [long], 1000).n_prefill < 0.7 * short.n_prefill


def test_a_prompt_more_urgent_than_every_decode_is_not_cut_for_them() -> None:
    plans, decoding = planner(), [sequence(i, 1, decoding=True, urgency_key=-1) for i in range(6)]
    urgent = sequence(9, 200, urgency_key=-9)
    steps = [plans.next(decoding, [urgent, sequence(10, 200, urgency_key=-3)], 1000) for _ in range(2)]
    assert [step.in_prefill_context for step in steps] == [True, False]
    assert steps[0].prefilling[0].sequence is urgent
    assert steps[0].prefilling[0].n_logits
    decoding.append(sequence(8, 1, decoding=True, urgency_key=-10))
    spared = plans.next(decoding, [urgent], 1000)
    assert spared.n_prefill < steps[0].n_prefill


def test_a_prompt_that_is_complete_in_a_step_goes_into_a_mixed_batch() -> None:
    plans, decoding = planner(), [sequence(0, 1, decoding=True), sequence(2, 1, decoding=True)]
    steps = [plans.next(decoding, [sequence(1, 30)], 1000) for _ in range(2)]
    assert kinds(steps) == [(True, True)] * 2
    assert not any(step.in_prefill_context for step in steps)
    assert all(step.prefilling[0].n_logits for step in steps)


def test_prompts_have_every_step_while_nothing_decodes() -> None:
    plans = planner()
    steps = [plans.next([], [sequence(1, 20_000)], 100_000) for _ in range(3)]
    assert kinds(steps) == [(False, True)] * 3
    assert all(step.in_prefill_context for step in steps)


def long_planner() -> Planner:
    """Steps hold about 40 prompt tokens, long ones 200."""
    budget = StepBudget(256, 2.0, 0.04, long_step_tokens=200, long_mixed_tokens=150)
    for n in (16, 64, 32):
        budget.observe(n, 0, 0.001 * n)
        budget.observe(n, 0, 0.001 * n, in_prefill_context=True)
    budget.observe(0, 1, 0.020)
    return Planner(budget)


def test_a_step_is_long_while_nothing_decodes_and_until_one_was_given_up() -> None:
    plans, prompt, decode = long_planner(), sequence(1, 900), sequence(0, 1, decoding=True)

    long = plans.next([], [prompt], 1000)
    assert long.is_long
    assert long.n_prefill == pytest.approx(200, abs=5)
    beside = [plans.next([decode], [prompt], 1000) for _ in range(2)]
    assert not any(plan.is_long or plan.n_prefill > 40 for plan in beside)
    plans.interrupted()
    for prompts in ([prompt], [prompt, sequence(2, 900)]):
        short = plans.next([], prompts, 1000)
        assert not short.is_long
        assert short.n_prefill == pytest.approx(40, abs=5)
    plans.next([decode], [], 1000)
    assert plans.next([], [prompt], 1000).is_long


def test_a_prompt_that_finds_no_prefill_context_takes_long_steps_as_well() -> None:
    plans, prompt, decode = long_planner(), sequence(1, 900), sequence(0, 1, decoding=True)
    long = plans.next([], [prompt], 0)
    assert (long.is_long, long.in_prefill_context, long.n_prefill) == (True, False, 150)
    assert not plans.next([decode], [prompt], 0).is_long
    plans.interrupted()
    assert not plans.next([], [prompt], 0).is_long


def test_a_short_prompt_needs_no_long_step() -> None:
    plan = long_planner().next([], [sequence(1, 30)], 1000)
    assert (plan.is_long, plan.in_prefill_context, plan.n_prefill) == (False, False, 30)


def test_without_a_prefill_context_every_batch_is_mixed() -> None:
    plans = planner()
    steps = [plans.next([sequence(0, 1, decoding=True)], [sequence(1, 200)], 0) for _ in range(3)]
    assert kinds(steps) == [(True, True)] * 3


@pytest.mark.parametrize(("room", "in_prefill_context"), [(900, True), (899, False)])
def test_a_prompt_goes_to_the_prefill_context_from_any_position_if_all_of_it_fits(
    room: int, *, in_prefill_context: bool
) -> None:
    begun = sequence(1, 900)
    begun.position = 500
    plan = planner().next([sequence(0, 1, decoding=True)], [begun], room)
    assert plan.in_prefill_context == in_prefill_context


@pytest.mark.parametrize(
    ("position", "pending", "in_prefill_context"),
    [(256, 16, True), (256, 15, False), (255, 16, False), (984, 16, True), (985, 16, False)],
)
def test_a_suffix_that_is_worth_the_copies_goes_to_the_prefill_context(
    position: int, pending: int, *, in_prefill_context: bool
) -> None:
    one = sequence(1, position + pending)
    one.position = position
    _, in_context = select_prefills([one], 40, 1000, 16)
    assert in_context == in_prefill_context
    assert select_prefills([one], 40, 1000, 0)[1] is False


def test_what_is_in_the_prefill_context_stays_however_little_is_left_and_room() -> None:
    begun = sequence(1, 200)
    begun.position, begun.in_prefill_context = 199, True
    plan = planner().next([sequence(0, 1, decoding=True)], [begun], 0)
    assert plan.in_prefill_context
    assert plan.prefilling[0].n_logits


def test_a_prompt_has_the_first_step_of_each_pair() -> None:
    plans, decoding = planner(), [sequence(0, 1, decoding=True)]
    assert plans.next(decoding, [sequence(1, 900)], 1000).in_prefill_context
    assert not plans.next(decoding, [], 1000).in_prefill_context  # the prompt was cancelled
    assert plans.next(decoding, [sequence(2, 900)], 1000).in_prefill_context


prompts_to_select = st.lists(
    st.tuples(st.integers(1, 900), st.sampled_from(["new", "begun", "in prefill context"])),
    min_size=1,
    max_size=8,
)


@given(prompts_to_select, st.integers(1, 200), st.integers(0, 3000))
def test_prefills_are_selected_in_urgency_order_for_one_context(
    prompts: list[tuple[int, str]], tokens: int, room: int
) -> None:
    prefilling = [sequence(i, n + 1) for i, (n, _) in enumerate(prompts)]
    for one, (_, kind) in zip(prefilling, prompts, strict=True):
        one.position = 0 if kind == "new" else 1
        one.in_prefill_context = kind == "in prefill context"
    selected, in_context = select_prefills(prefilling, tokens, room)
    assert selected == prefilling[: len(selected)] != []
    entering = [s for s in selected if not s.in_prefill_context]
    if in_context:
        assert sum(s.n_tokens for s in entering) <= room
    else:
        assert entering == selected
        # A prefill that is not complete in this step finds no room in the prefill context.
        for part in plan_step([], selected, tokens).prefilling:
            assert part.n_logits or part.sequence.n_tokens > room


def test_the_more_urgent_prompt_goes_first_then_the_earlier() -> None:
    first, urgent, second = sequence(0, 5), sequence(2, 5, urgency_key=-9), sequence(1, 5)
    _, prefilling = split([second, first, urgent])
    assert prefilling == [urgent, first, second]


def test_what_was_discarded_is_prefilled_again() -> None:
    discarded = sequence(0, 5, decoding=True)
    discarded.discard()
    assert split([discarded]) == ([], [discarded])
    assert plan_of([(discarded, 5)]).prefilling[0].n_logits


def test_what_was_discarded_is_not_decoded_before_it_is_prefilled_again() -> None:
    discarded = sequence(0, 5, decoding=True)
    discarded.discard()
    discarded.position, discarded.in_prefill_context = 4, True  # all but its last token is computed there
    assert split([discarded]) == ([], [discarded])


def test_a_plan_of_grants_tells_tokens_from_prompts() -> None:
    plan = plan_of([(sequence(0, 5), 3), (sequence(1, 5, decoding=True), 1)])
    assert [(s.sequence.seq_id, s.n, s.n_logits) for s in plan.decoding] == [(1, 1, 1)]
    assert [(s.sequence.seq_id, s.n, s.n_logits) for s in plan.prefilling] == [(0, 3, 0)]
    assert plan.n_tokens == 4
