"""How many tokens are drafted for whom, and which of them are accepted."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from harness.sequences import new_sequence

from inferflux.v1 import generation_pb2
from inferflux.worker.engine.plan.budget import StepBudget
from inferflux.worker.engine.plan.planner import ScheduledTokens
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.plan.speculation import (
    DRAFT,
    NGRAM,
    Candidate,
    Course,
    Drafts,
    Learned,
    Tries,
    rows_of,
)
from inferflux.worker.engine.sampling.sampling import Sampler
from inferflux.worker.engine.sampling.sampling_rows import BAD
from inferflux.worker.engine.step.verification import agreed, drop_rejected, samplers_of


def budget(fixed_s: float, row_s: float, *, alone_s: float = 0.0) -> StepBudget:
    """One that knows the cost of steps.

    Args:
        alone_s: of a step of one row, if that is another.
    """
    made = StepBudget(2048, 5.0, 0.2)
    made.know_rows({n: fixed_s + row_s * n for n in (2, 63)} | {1: alone_s or fixed_s + row_s})
    return made


def worth(rate: float, *, fixed_s: float, row_s: float, n_decoding: int = 1, alone_s: float = 0.0) -> int:
    candidates = [Candidate([rate], 24)] * n_decoding
    made = budget(fixed_s, row_s, alone_s=alone_s)
    return len(made.rows_worth(n_decoding, rows_of(candidates), 63 - n_decoding).rows)


def test_more_is_drafted_the_more_is_accepted() -> None:
    found = [worth(rate, fixed_s=0.004, row_s=0.0005) for rate in (0.1, 0.5, 0.8, 0.95)]
    assert found == sorted(found)
    assert found[0] <= 1 < found[-1]


def test_nothing_is_drafted_where_a_row_costs_as_much_as_a_step() -> None:
    assert worth(0.9, fixed_s=0.0, row_s=0.002) == 0
    assert worth(0.9, fixed_s=0.002, row_s=0.00002) > 8


def test_where_a_second_row_is_dear_some_are_drafted_or_none() -> None:
    """A row alone takes another path: one draft loses, and several win if they are accepted."""
    assert worth(0.95, fixed_s=0.009, row_s=0.0005, alone_s=0.004) > 4
    assert worth(0.6, fixed_s=0.009, row_s=0.0005, alone_s=0.004) == 0


def test_with_many_sequences_only_what_is_nearly_certain_is_drafted() -> None:
    assert worth(0.6, fixed_s=0.006, row_s=0.001, n_decoding=16) == 0
    assert worth(0.97, fixed_s=0.006, row_s=0.001, n_decoding=16) > 0


def test_a_step_with_drafts_takes_no_longer_than_prefill_may_have_it_take() -> None:
    assert 0 < worth(0.99, fixed_s=0.1, row_s=0.01) <= 10


def test_numbers_of_rows_that_fill_a_tile_are_drafted() -> None:
    made = StepBudget(2048, 5.0, 0.2)
    made.know_rows({n: 0.004 + 0.002 * -(-n // 4) for n in range(1, 64)})
    for rate in (0.7, 0.8, 0.9):
        assert (1 + len(made.rows_worth(1, rows_of([Candidate([rate], 24)]), 62).rows)) % 4 == 0


def test_what_the_draft_model_takes_is_counted() -> None:
    made = budget(0.004, 0.0005)
    free, dear = ([Candidate([0.8], 24, draft_s=s)] for s in (0.0, 0.002))
    assert (
        0 < len(made.rows_worth(1, rows_of(dear), 62).rows) < len(made.rows_worth(1, rows_of(free), 62).rows)
    )
    slow = [Candidate([0.8], 24, draft_s=0.004)]
    assert made.rows_worth(1, rows_of(slow), 62).rows == []


@pytest.mark.parametrize("n_decoding", [1, 4, 16])
@pytest.mark.parametrize("alone_s", [0.002, 0.0045, 0.006])
def test_less_than_the_least_gain_is_never_worth_its_time(n_decoding: int, alone_s: float) -> None:
    made = budget(0.004, 0.0005, alone_s=alone_s)
    least = made.least_gain(n_decoding)
    assert 0.0 <= least < 1.0
    for rate in np.arange(0.01, 1.0, 0.01):
        rows = rows_of([Candidate([float(rate)], 24)] * n_decoding)
        assert rate >= least or not made.rows_worth(n_decoding, rows, 63 - n_decoding).rows


def test_rows_come_in_the_order_of_what_they_give() -> None:
    rows = list(rows_of([Candidate([0.5], 3), Candidate([0.9, 0.5], 3)]))
    assert [row.of for row in rows] == [1, 0, 1, 0, 1, 0]
    assert [round(row.gain, 3) for row in rows] == [0.9, 0.5, 0.45, 0.25, 0.225, 0.125]


def test_a_sequence_begins_with_what_others_had_and_finds_its_own() -> None:
    learned, first = Learned(), Drafts(DRAFT)
    before = learned.of_model(first)
    for _ in range(200):
        learned.said(first, 1.0, is_accepted=True)
    assert learned.of_model(first) > 0.95
    another = Drafts(DRAFT)
    assert before < learned.of_model(another) < 1.0
    for _ in range(20):
        learned.said(another, 1.0, is_accepted=False)
    assert learned.of_model(another) < 0.3 < learned.of_model(Drafts(DRAFT))


def test_evidence_against_a_draft_model_fades() -> None:
    learned, drafts = Learned(), Drafts(DRAFT)
    for _ in range(4):
        learned.said(drafts, 1.0, is_accepted=False)
    after = learned.of_model(drafts)
    for _ in range(300):
        drafts.rates.fade()
    assert learned.of_model(drafts) > 1.5 * after


def test_the_longer_a_run_agrees_the_surer_it_is() -> None:
    """Each length has a rate of its own."""
    learned, drafts = Learned(), Drafts(NGRAM)
    drafts.index.extend(np.array([1, 2, 1], np.int32), 3)
    for _ in range(50):
        learned.looked_up(drafts, 1, is_accepted=False)
        learned.looked_up(drafts, 2, is_accepted=True)
    rates = learned.of_lookup(drafts)
    assert len(rates) == 8
    assert learned.next_of_lookup(drafts) == rates[0] < 0.1 < 0.9 < rates[1]


def test_a_draft_goes_on_while_its_model_is_sure() -> None:
    learned, drafts = Learned(), Drafts(DRAFT)
    for _ in range(60):
        learned.said(drafts, 0.1, is_accepted=False)
        learned.said(drafts, 9.0, is_accepted=True)

    def course() -> Course:
        return Course(learned.by_margin(drafts), 0.6, least=0.3, draft=0.1)

    sure = course()
    assert all(sure.is_worth_a_row(9.0) and sure.goes_on for _ in range(10))
    assert not sure.is_worth_a_row(0.1)
    assert not course().is_worth_a_row(-3.0), "it was drawn, but another is likelier"
    unsure = course()
    assert unsure.is_worth_a_row(2.5)
    assert not (unsure.is_worth_a_row(2.5) and unsure.goes_on)


def test_tries_are_the_rarer_the_more_of_them_changed_nothing() -> None:
    tries, due = Tries(), []
    for n in range(3000):
        if tries.is_due():
            tries.made()
            due.append(n)
    gaps = [later - earlier for earlier, later in itertools.pairwise(due)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == 1024
    tries.paid()
    assert [tries.is_due() for _ in range(16)].index(True) == 15


def test_a_try_that_no_draft_was_ready_for_is_due_in_the_next_step_and_makes_no_later_one_rarer() -> None:
    tries = Tries()
    assert [tries.is_due() for _ in range(40)] == [False] * 15 + [True] * 25
    tries.made()
    assert [tries.is_due() for _ in range(32)].index(True) == 31


def test_a_draft_is_accepted_up_to_the_first_other_token() -> None:
    assert agreed([1, 2, 3], [1, 2]) == 2
    assert agreed([1, 9, 3], [1, 2]) == 1
    assert agreed([9, 2, 3], [1, 2]) == 0


def drafted(tokens: list[int], n_drafted: int, sampler: Sampler | None = None) -> ScheduledTokens:
    """A decode whose last `n_drafted` tokens are drafted."""
    sequence: Sequence = new_sequence(0, np.array(tokens, np.int32), prompt_tokens=len(tokens) - n_drafted)
    sequence.sampler = sampler or sequence.sampler
    return ScheduledTokens(sequence, 1 + n_drafted, n_logits=1 + n_drafted, n_drafted=n_drafted)


def test_tokens_after_a_rejected_one_are_dropped_in_each_part() -> None:
    prompt = ScheduledTokens(new_sequence(1, np.zeros(9, np.int32), prompt_tokens=9), 5)
    parts = [drafted([1, 2, 3, 4], 2), prompt, drafted([5, 6], 0), drafted([7, 8], 1)]
    sampled = [3, 9, 9, 4, 0, 0]
    drop_rejected(parts, sampled)
    assert sampled == [3, 9, BAD, 4, 0, BAD]


def test_each_row_has_the_penalties_of_the_tokens_before_it() -> None:
    params = generation_pb2.SamplingParams(
        temperature=0.0,
        repeat_penalty=1.5,
        frequency_penalty=0.5,
        presence_penalty=0.25,
        penalty_last_n=3,
        dry_multiplier=0.8,
        dry_base=1.75,
        dry_allowed_length=1,
        dry_penalty_last_n=-1,
    )
    history, draft = [4, 2, 2], [1, 2, 3]
    part = drafted(history + draft, 3, Sampler(params, history))
    logits = np.random.default_rng(1).normal(size=8).astype(np.float32)
    for n, sampler in enumerate(samplers_of(part)):
        found, expected = logits.copy(), logits.copy()
        sampler.adjust(found)
        Sampler(params, history + draft[:n]).adjust(expected)
        assert np.array_equal(found, expected)
    assert np.array_equal(part.sequence.sampler.adjusted_ids(), Sampler(params, history).adjusted_ids())


def test_a_sampler_without_a_history_is_the_same_for_every_row() -> None:
    params = generation_pb2.SamplingParams(temperature=0.8)
    assert len(set(map(id, samplers_of(drafted([1, 2, 3], 2, Sampler(params, [1])))))) == 1
