"""Steps hold sequences of one adapter, alternate, and do not let an urgent prompt wait for all of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
from harness.sequences import new_sequence

from inferflux.worker.engine.plan.adapter_steps import AdapterSteps, by_adapter
from inferflux.worker.engine.plan.budget import StepBudget
from inferflux.worker.engine.plan.facets import Origin
from inferflux.worker.engine.plan.sequence import Phase, Sequence


def sequence(number: int, adapter: str, *, prompt: int = 0, urgency_key: float = 0.0) -> Sequence:
    """One that decodes, or has a prompt."""
    n = prompt or 4
    made = new_sequence(number, np.zeros(n + 10, np.int32), prompt_tokens=n, urgency_key=urgency_key)
    made.origin = Origin(f"r{number}", adapter=adapter)
    if not prompt:
        made.position, made.phase, made.generated = 4, Phase.DECODE, 1
    return made


def steps(same_s: float = 0.05, switched_s: float = 0.051) -> AdapterSteps:
    """One for which a switch is cheap, unless it is said to take longer."""
    made = AdapterSteps(StepBudget(256, 5.0, 10.0))
    made.decoded(same_s, is_switched=False)
    made.decoded(switched_s, is_switched=True)
    return made


def adapters_of(planner: AdapterSteps, sequences: list[Sequence], n: int) -> list[str]:
    """Whose the next steps are; nothing is computed in them."""
    found = []
    for _ in range(n):
        groups = by_adapter(sequences)
        adapter = planner.choose(groups)
        plan = planner.plan(adapter, groups, 0)
        assert plan.adapter == adapter
        assert {part.sequence.origin.adapter for part in plan.parts} == {adapter}
        found.append(adapter)
    return found


def test_decoding_sequences_of_each_adapter_get_as_many_steps() -> None:
    running = [sequence(i, "aaab"[i]) for i in range(4)] + [sequence(9, "")]
    assert Counter(adapters_of(steps(), running, 30)) == {"a": 10, "b": 10, "": 10}


def test_an_adapter_that_comes_is_next() -> None:
    planner, running = steps(), [sequence(0, "a"), sequence(1, "b")]
    adapters_of(planner, running, 7)
    assert adapters_of(planner, [*running, sequence(2, "c")], 1) == ["c"]


def test_an_urgent_prompt_gets_every_second_step() -> None:
    planner, running = steps(), [sequence(i, "abcd"[i], urgency_key=1.0) for i in range(4)]
    adapters_of(planner, running, 5)
    urgent = sequence(9, "e", prompt=200, urgency_key=0.0)
    chosen = adapters_of(planner, [*running, urgent], 16)
    assert chosen[::2] == ["e"] * 8
    assert Counter(chosen[1::2]) == {"a": 2, "b": 2, "c": 2, "d": 2}


def test_a_prompt_that_is_less_urgent_takes_its_part_alone() -> None:
    running = [sequence(0, "a"), sequence(1, "b", prompt=200, urgency_key=5.0)]
    assert Counter(adapters_of(steps(), running, 10)) == {"a": 5, "b": 5}


def test_prompts_spare_decodes_of_other_adapters() -> None:
    budget = StepBudget(256, 2.0, 10.0)
    for n in (16, 64, 32):
        budget.observe(n, 0, 0.001 * n)
    for n in (1, 2, 3):
        budget.observe(0, n, 0.040)
    alone = AdapterSteps(budget).plan("a", {"a": [sequence(9, "a", prompt=400)]}, 0)
    beside = {"a": [sequence(9, "a", prompt=400)], "b": [sequence(1, "b")]}
    assert AdapterSteps(budget).plan("a", beside, 0).n_prefill < alone.n_prefill


def test_an_adapter_has_steps_in_a_row_where_switching_is_dear() -> None:
    running = [sequence(0, "a"), sequence(1, "b")]
    assert steps(0.05, 0.2).stay == 1  # others would wait for too long
    dear = steps(0.001, 0.0015)
    assert dear.stay == 5
    assert adapters_of(dear, running, 16) == ["a", *["b"] * 5, *["a"] * 5, *["b"] * 5]
    assert steps(0.001, 0.5).stay == 30
    assert AdapterSteps(StepBudget(256, 5.0, 10.0)).stay == 2


def test_an_adapter_that_comes_does_not_wait_for_steps_in_a_row() -> None:
    planner, running = steps(0.001, 0.5), [sequence(0, "a"), sequence(1, "b")]
    adapters_of(planner, running, 33)
    assert adapters_of(planner, [*running, sequence(2, "c")], 1) == ["c"]
