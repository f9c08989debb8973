"""Decoding sequences always get their token; prompts share what the budget leaves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inferflux.v1 import generation_pb2
from inferflux.worker.engine.planner import plan_step, split
from inferflux.worker.engine.sampling import Sampler
from inferflux.worker.engine.sequence import Sequence
from inferflux.worker.engine.text import TextAssembler


def sequence(slot: int, pending: int, *, decoding: bool = False, priority: int = 0) -> Sequence:
    return Sequence(
        key=f"t.r{slot}",
        request_id=f"r{slot}",
        epoch=1,
        slot=slot,
        priority=priority,
        arrival=slot,
        pending=np.zeros(1 if decoding else pending, np.int32),
        prompt_tokens=pending,
        max_tokens=10,
        end_tokens=frozenset(),
        sampler=Sampler(generation_pb2.SamplingParams(), []),
        text=TextAssembler(),
        deadline_unix_s=float("inf"),
        queue_ms=0.0,
        started_s=0.0,
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
        assert share.wants_logits == (share.n == share.sequence.pending.shape[0])
    assert [s.wants_logits for s in plan.prefilling[:-1]] == [True] * max(len(plan.prefilling) - 1, 0)


def test_the_more_urgent_prompt_goes_first_then_the_earlier() -> None:
    first, urgent, second = sequence(0, 5), sequence(2, 5, priority=9), sequence(1, 5)
    _, prefilling = split([second, first, urgent])
    assert prefilling == [urgent, first, second]


def test_a_sequence_holds_a_cell_for_every_token_but_the_last() -> None:
    assert sequence(0, 7).cells == 16
