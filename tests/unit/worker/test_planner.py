"""Decoding sequences always get their token; prompts share what the budget leaves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inferflux.v1 import generation_pb2
from inferflux.worker.engine.budget import StepBudget
from inferflux.worker.engine.planner import Planner, StepPlan, plan_of, plan_step, split
from inferflux.worker.engine.sampling import Sampler
from inferflux.worker.engine.sequence import Sequence
from inferflux.worker.engine.text import TextAssembler


def sequence(slot: int, pending: int, *, decoding: bool = False, rank: float = 0.0) -> Sequence:
    return Sequence(
        key=f"t.r{slot}",
        request_id=f"r{slot}",
        epoch=1,
        slot=slot,
        rank=rank,
        arrival=slot,
        tokens=np.zeros(pending + 10, np.int32),
        prompt_tokens=pending,
        max_tokens=10,
        end_tokens=frozenset(),
        sampler=Sampler(generation_pb2.SamplingParams(), []),
        text=TextAssembler(),
        deadline_unix_s=float("inf"),
        enqueued_unix_s=0.0,
        queue_ms=0.0,
        started_s=0.0,
        position=pending - 1 if decoding else 0,
        first_token_s=1.0 if decoding else 0.0,
    )


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


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), st.integers(1, 4))
def test_what_is_left_of_a_prompt_makes_whole_tiles(prompts: list[int], tiles: int) -> None:
    plan = plan_step([], [sequence(i, n) for i, n in enumerate(prompts)], 64 * tiles, tile=64)
    for share in plan.prefilling:
        assert (share.sequence.n_pending - share.n) % 64 == 0
    assert min(64 * tiles, sum(prompts)) <= plan.n_prefill < 64 * (tiles + 1)


def planner(tile: int) -> Planner:
    """One whose steps may hold 64 prompt tokens."""
    budget = StepBudget(256, 1.0, 0.05, tile)
    for n in (16, 64, 32):
        budget.observe(n, 0, 0.0007 * n)
    for n in (1, 2, 3):
        budget.observe(0, n, 0.045)
    return Planner(budget)


def kinds(plans: list[StepPlan]) -> list[tuple[bool, bool]]:
    """(holds streams, holds prompts) of each."""
    return [(bool(plan.decoding), bool(plan.prefilling)) for plan in plans]


def test_where_attention_has_tiles_a_prompt_takes_turns_with_less_urgent_streams() -> None:
    plans, decoding = planner(64), [sequence(0, 1, decoding=True), sequence(2, 1, decoding=True, rank=-5)]
    prefilling = [sequence(1, 200, rank=-9), sequence(3, 200)]
    steps = [plans.next(decoding, prefilling) for _ in range(4)]
    assert kinds(steps) == [(False, True), (True, False)] * 2
    assert [step.n_prefill for step in steps] == [72, 0, 72, 0]


def test_a_prompt_that_is_less_urgent_than_any_stream_goes_beside_them() -> None:
    plans, decoding = planner(64), [sequence(0, 1, decoding=True), sequence(2, 1, decoding=True, rank=-5)]
    steps = [plans.next(decoding, [sequence(1, 200, rank=-1)]) for _ in range(3)]
    assert kinds(steps) == [(True, True)] * 3
    assert all(0 < step.n_prefill < 64 for step in steps)


def test_a_prompt_smaller_than_a_tile_goes_beside_the_streams() -> None:
    plans, decoding = planner(64), [sequence(0, 1, decoding=True), sequence(2, 1, decoding=True)]
    assert kinds([plans.next(decoding, [sequence(1, 61, rank=-9)])] * 2) == [(True, True)] * 2
    assert kinds([plans.next(decoding, [sequence(1, 62, rank=-9)])]) == [(False, True)]


def test_prompts_have_every_step_while_nothing_decodes() -> None:
    plans = planner(64)
    assert kinds([plans.next([], [sequence(1, 200)]) for _ in range(3)]) == [(False, True)] * 3


def test_where_nothing_has_tiles_they_share_every_step() -> None:
    plans = planner(1)
    steps = [plans.next([sequence(0, 1, decoding=True)], [sequence(1, 200, rank=-9)]) for _ in range(3)]
    assert kinds(steps) == [(True, True)] * 3


def test_the_more_urgent_prompt_goes_first_then_the_earlier() -> None:
    first, urgent, second = sequence(0, 5), sequence(2, 5, rank=-9), sequence(1, 5)
    _, prefilling = split([second, first, urgent])
    assert prefilling == [urgent, first, second]


def test_what_was_given_up_is_prefilled_again() -> None:
    given_up = sequence(0, 5, decoding=True)
    given_up.position = 0
    assert split([given_up]) == ([], [given_up])
    assert plan_of([(given_up, 5)]).prefilling[0].wants_logits


def test_a_plan_of_grants_tells_tokens_from_prompts() -> None:
    plan = plan_of([(sequence(0, 5), 3), (sequence(1, 5, decoding=True), 1)])
    assert [(s.sequence.slot, s.n, s.wants_logits) for s in plan.decoding] == [(1, 1, True)]
    assert [(s.sequence.slot, s.n, s.wants_logits) for s in plan.prefilling] == [(0, 3, False)]
    assert plan.n_tokens == 4
