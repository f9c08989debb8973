"""Faults of workers that fetch state from each other, and what is asked of them meanwhile."""

from __future__ import annotations

from itertools import islice

import pytest
from fleet.asks import countdowns
from fleet.cases import case_of
from fleet.faults import Verb, plan_of_state
from fleet.layout import WORKERS

SEEDS = range(30)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_worker_at_a_time_is_hit_and_all_are_back_in_the_end(seed: int) -> None:
    faults = plan_of_state(seed, 60)
    assert faults == plan_of_state(seed, 60)
    for before, after in zip(faults, [*faults[1:], None], strict=True):
        assert before.at_s + before.lasts_s < (60 if after is None else after.at_s)
        assert len(before.targets) == 1


def test_every_worker_meets_every_fault_sooner_or_later() -> None:
    seen = {(fault.verb, fault.targets[0]) for seed in SEEDS for fault in plan_of_state(seed, 120)}
    assert seen == {(verb, worker) for verb in Verb if verb is not Verb.MINORITY for worker in WORKERS}


def test_workers_can_be_parted_from_each_other_alone() -> None:
    (fault,) = case_of("apart:worker-0", seed=1, seconds=10, lasts_s=5, streams=1).faults
    assert fault.verb is Verb.APART


def test_most_requests_have_long_prompts_and_all_a_known_answer() -> None:
    asked = list(islice(countdowns("roles", 1, 0), 40))
    assert sum(len(ask.prompt) > 300 for ask in asked) > 20
    assert len({ask.request_id for ask in asked}) == 40
    assert all(ask.n_tokens == len(ask.token_ids) > 20 for ask in asked)
    assert asked == list(islice(countdowns("roles", 1, 0), 40))
