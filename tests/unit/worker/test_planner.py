"""Decoding sequences always get their token; prompts share what the budget leaves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inferflux.v1 import generation_pb2
from inferflux.worker.engine.planner import plan_of, plan_step, split
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
