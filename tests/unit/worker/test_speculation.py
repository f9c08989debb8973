"""How many tokens are drafted for whom, and which of them are accepted."""

from __future__ import annotations

import numpy as np
from harness.sequences import new_sequence

from inferflux.v1 import generation_pb2
from inferflux.worker.engine.budget import StepBudget
from inferflux.worker.engine.planner import ScheduledTokens
from inferflux.worker.engine.sampling import Sampler
from inferflux.worker.engine.sampling_rows import BAD
from inferflux.worker.engine.sequence import Sequence
from inferflux.worker.engine.speculation import Acceptance, Candidate, Tries, rows_of
from inferflux.worker.engine.verification import agreed, drop_rejected, samplers_of


def budget(fixed_s: float, token_s: float, *, n_decoding: int) -> StepBudget:
    """One that has seen many steps of this cost."""
    made = StepBudget(2048, 5.0, 0.2)
    for n in (16, 64):
        made.observe(n, 0, fixed_s + token_s * n)
    for _ in range(100):
        made.observe(0, n_decoding, fixed_s + token_s * n_decoding)
        for n_drafted in (4, 20):
            seconds = fixed_s + token_s * (n_decoding + n_drafted)
            made.observe(0, n_decoding, seconds, n_drafted=n_drafted)
    return made


def worth(rate: float, *, fixed_s: float, token_s: float, n_decoding: int = 1) -> int:
    rows = rows_of([Candidate(rate, 24)] * n_decoding, 63 - n_decoding)
    return budget(fixed_s, token_s, n_decoding=n_decoding).rows_worth(n_decoding, rows)


def test_more_is_drafted_the_more_is_accepted() -> None:
    found = [worth(rate, fixed_s=0.004, token_s=0.0005) for rate in (0.1, 0.5, 0.8, 0.95)]
    assert found == sorted(found)
    assert found[0] <= 1 < found[-1]


def test_nothing_is_drafted_where_a_row_costs_as_much_as_a_step() -> None:
    assert worth(0.9, fixed_s=0.0, token_s=0.002) == 0
    assert worth(0.9, fixed_s=0.002, token_s=0.00002) > 8


def test_with_many_sequences_only_what_is_nearly_certain_is_drafted() -> None:
    assert worth(0.6, fixed_s=0.002, token_s=0.001, n_decoding=16) == 0
    assert worth(0.97, fixed_s=0.002, token_s=0.001, n_decoding=16) > 0


def test_a_step_with_drafts_takes_no_longer_than_prefill_may_have_it_take() -> None:
    assert 0 < worth(0.99, fixed_s=0.1, token_s=0.01) <= 10


def test_rows_come_in_the_order_of_what_they_give() -> None:
    rows = rows_of([Candidate(0.5, 3), Candidate(0.9, 2)], 4)
    assert [row.of for row in rows] == [1, 1, 0, 0]
    assert [round(row.gain, 2) for row in rows] == [0.9, 0.81, 0.5, 0.25]


def test_what_follows_a_rejected_token_was_not_tested() -> None:
    of_one, of_all = Acceptance(), Acceptance()
    for _ in range(100):
        of_one.observe(8, 1)
        of_all.observe(8, 8)
    assert abs(of_one.rate(0.6) - 0.5) < 0.05
    assert 0.9 < of_all.rate(0.6) < 1.0
    assert Acceptance().rate(0.6) == 0.6


def test_of_many_fruitless_steps_one_tries_all_the_same() -> None:
    tries = Tries()
    found = [tries.rows(0, 10) for _ in range(128)]
    assert sum(map(bool, found)) == 2
    assert tries.rows(5, 10) == 5


def test_the_more_sequences_the_longer_none_are_looked_for_after_none_were_found() -> None:
    for n_decoding, resting in ((1, 0), (4, 1), (16, 4)):
        tries = Tries()
        tries.none_found(n_decoding)
        assert [tries.is_resting() for _ in range(6)] == [True] * resting + [False] * (6 - resting)


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
