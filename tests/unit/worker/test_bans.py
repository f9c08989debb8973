"""Tokens that may not come next."""

from __future__ import annotations

import copy

import numpy as np

from inferflux.v1 import generation_pb2
from inferflux.worker.engine.plan.text import TextAssembler
from inferflux.worker.engine.sampling.bans import Bans
from inferflux.worker.engine.sampling.sampling import Sampler
from inferflux.worker.engine.sampling.sampling_rows import choose_tokens


def banned(bans: Bans) -> set[int]:
    return set(bans.ids.tolist())


def test_nothing_is_banned_where_nothing_is_asked_for() -> None:
    assert Bans.of([], {1}, 0, []) is None


def test_a_word_of_one_token_never_comes() -> None:
    bans = Bans([[5]], set(), 0)
    bans.accept(5)
    assert banned(bans) == {5}


def test_the_last_token_of_a_word_does_not_come_after_the_others() -> None:
    bans = Bans([[5, 6, 7], [6, 8]], set(), 0)
    assert banned(bans) == set()
    bans.accept(5)
    bans.accept(6)
    assert banned(bans) == {7, 8}
    bans.accept(9)
    assert banned(bans) == set()


def test_no_end_comes_before_the_shortest_answer() -> None:
    bans = Bans([], {1, 2}, 2)
    assert banned(bans) == {1, 2}
    bans.accept(9)
    assert banned(bans) == {1, 2}
    bans.accept(9)
    assert banned(bans) == set()


def test_a_retry_bans_what_would_have_been_banned() -> None:
    bans = Bans([[5, 6]], {1}, 3)
    for token in (4, 5):
        bans.accept(token)
    assert banned(Bans([[5, 6]], {1}, 3, [4, 5])) == banned(bans) == {1, 6}


def test_a_copy_is_on_its_own() -> None:
    bans = Bans([[5, 6]], {1}, 1)
    other = copy.copy(bans)
    other.accept(5)
    assert (banned(bans), banned(other)) == ({1}, {6})


def test_a_row_is_as_before_once_its_token_is_chosen() -> None:
    params = generation_pb2.SamplingParams(temperature=0.0)
    logits = np.array([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]], np.float32)
    before = logits.copy()
    samplers = [Sampler(params, [], bans=Bans([[0]], set(), 0)), Sampler(params, [])]
    assert choose_tokens(logits, samplers, [0, 0]) == [1, 2]
    assert (logits == before).all()


def test_a_draft_is_verified_under_the_bans_that_hold_after_it() -> None:
    sampler = Sampler(generation_pb2.SamplingParams(temperature=0.0), [], bans=Bans([[5, 0]], set(), 0))
    logits = np.array([3.0, 2.0, 1.0], np.float32)
    assert sampler.choose(logits, 0) == 0
    assert sampler.after(5).choose(logits, 1) == 1
    assert sampler.choose(logits, 0) == 0


def test_stop_strings_begin_after_the_shortest_answer() -> None:
    text = TextAssembler(["."], min_tokens=2)
    assert text.push(b"a.") == "a."
    assert text.push(b"b.") == "b."
    assert not text.is_stopped
    assert text.push(b"c.") == "c"
    assert text.is_stopped
