"""What a history of a fleet must not have: each check is shown a history that breaches it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from chaos.transcript import Transcript
from fleet import checks
from fleet.asks import Ask
from fleet.history import Dispatch, History, Served

from inferflux.v1 import generation_pb2, tokens_pb2

TOKENS = 4


def chunk(ask: Ask, first: int, last: int, *, epoch: int = 1, ends: bool = False) -> tokens_pb2.TokenChunk:
    made = tokens_pb2.TokenChunk(
        request_id=ask.request_id, epoch=epoch, offset=first, token_ids=ask.token_ids[first:last]
    )
    before = Ask(ask.request_id, ask.number, first, ask.vocabulary_size).text
    made.text = Ask(ask.request_id, ask.number, last, ask.vocabulary_size).text.removeprefix(before)
    if ends:
        made.finished.reason = generation_pb2.FINISH_REASON_LENGTH
        made.finished.usage.completion_tokens = ask.n_tokens
    return made


def served(name: str = "r", *, number: int = 7, is_due: bool = True) -> Served:
    ask = Ask(name, number, TOKENS, 1000, is_due=is_due)
    transcript = Transcript(
        order=ask,
        request_id=name,
        expected=ask.token_ids,
        began_s=1.0,
        good_end=generation_pb2.FINISH_REASON_LENGTH,
    )
    return Served(ask, transcript)


def ask_of(each: Served) -> Ask:
    assert isinstance(each.ask, Ask)
    return each.ask


def received(each: Served, *chunks: tokens_pb2.TokenChunk) -> Served:
    for number, one in enumerate(chunks):
        each.received(one, 2.0 + number)
        each.transcript.add(one, 2.0 + number)
    each.ended_s = 2.0 + len(chunks)
    return each


def whole(name: str = "r") -> Served:
    each = served(name)
    return received(each, chunk(ask_of(each), 0, 2), chunk(ask_of(each), 2, 4, ends=True))


def test_a_whole_stream_breaches_nothing() -> None:
    assert checks.streams([whole()]) == []


BROKEN: dict[str, tuple[Callable[[Ask], list[tokens_pb2.TokenChunk]], str]] = {
    "a gap": (lambda ask: [chunk(ask, 0, 1), chunk(ask, 2, 4, ends=True)], "tokens lost"),
    "a repeat": (lambda ask: [chunk(ask, 0, 2), chunk(ask, 1, 4, ends=True)], "tokens doubled"),
    "an older epoch": (
        lambda ask: [chunk(ask, 0, 2, epoch=2), chunk(ask, 2, 4, epoch=1, ends=True)],
        "older epoch",
    ),
    "two ends": (
        lambda ask: [chunk(ask, 0, 4, ends=True), chunk(ask, 4, 4, ends=True)],
        "after the end",
    ),
    "another's tokens": (
        lambda ask: [chunk(Ask("r", ask.number + 1, TOKENS, 1000), 0, 4, ends=True)],
        "token list",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_stream_that_is_not_as_it_should_be_is_found(name: str) -> None:
    chunks, expected = BROKEN[name]
    each = served()
    received(each, *chunks(ask_of(each)))
    found = checks.streams([each])
    assert any(expected in what for _, what in found), found


def test_a_stream_that_failed_is_found_and_one_that_was_refused_where_it_may_be_is_not() -> None:
    each = served()
    each.transcript.failure, each.is_refused = "NO_SCHEDULER: none", True
    assert checks.streams([each])
    began_s = each.transcript.began_s
    assert not checks.streams([each], may_refuse_s=began_s)
    # One that began before was accepted, and is lost.
    assert checks.streams([each], may_refuse_s=began_s + 0.1)


def test_an_answer_beyond_its_deadline_is_found() -> None:
    each = served(is_due=False)
    received(each, chunk(ask_of(each), 0, 4, ends=True))
    assert [what for _, what in checks.streams([each])] == ["went on beyond its deadline"]


def test_a_request_that_is_there_twice_is_found() -> None:
    assert not checks.once([whole("a"), whole("b")])
    assert checks.once([whole("a"), whole("a")]) == [("a", "is there 2 times")]


def test_two_schedulers_that_dispatch_in_one_term_are_found() -> None:
    one, other = Dispatch(1.0, 5, "inbox.a"), Dispatch(2.0, 5, "inbox.b")
    assert not checks.terms([one, one, Dispatch(2.0, 6, "inbox.b")])
    ((about, what),) = checks.terms([one, other])
    assert (about, "inbox.a, inbox.b" in what) == ("term 5", True)


def history(requests: int, tokens: int, *, losses_s: list[float] | None = None) -> History:
    made = History(served=[whole("a"), whole("b")], losses_s=losses_s or [])
    made.counted_before = {"requests": 10, "completion_tokens": 100}
    made.counted_after = {"requests": 10 + requests, "completion_tokens": 100 + tokens}
    return made


def test_usage_that_is_all_there_once_breaches_nothing() -> None:
    assert checks.settlements(history(2, 2 * TOKENS)) == []
    assert checks.is_settled(history(2, 2 * TOKENS))


@pytest.mark.parametrize(("requests", "tokens"), [(3, 2 * TOKENS), (2, 2 * TOKENS + 1)])
def test_usage_that_is_counted_twice_is_found(requests: int, tokens: int) -> None:
    assert checks.settlements(history(requests, tokens))


def test_usage_that_is_missing_is_found_unless_a_loss_may_have_taken_it() -> None:
    assert len(checks.settlements(history(1, TOKENS))) == 2
    # Both ended at 4.0.
    assert not checks.settlements(history(1, TOKENS, losses_s=[5.0]))
    assert checks.settlements(history(1, TOKENS, losses_s=[3.9, 6.1]))


def test_the_longest_gap_and_wait_count_from_the_fault_on() -> None:
    assert checks.longest_gap_s([whole()], 2.5) == 1.0
    assert checks.longest_gap_s([whole()], 3.5) == 0.0
    assert checks.longest_wait_s([whole()], 1.5) == 1.0
    assert checks.longest_wait_s([whole()], 2.5) == 0.0


@pytest.mark.parametrize(("away_s", "n_found"), [([], 2), ([(5.0, 30.0)], 0), ([(5.0, 19.0)], 2)])
def test_what_a_gateway_could_not_settle_while_redis_was_away_may_be_lost_with_it(
    away_s: list[tuple[float, float]], n_found: int
) -> None:
    made = history(1, TOKENS, losses_s=[20.0])
    made.away_s = away_s
    assert len(checks.settlements(made)) == n_found
