"""What is read off streams that were preempted, killed or cancelled."""

from __future__ import annotations

import math

import pytest

from benchmarks.scheduling import figures
from benchmarks.scheduling.cancels import Freed
from benchmarks.scheduling.figures import Window
from benchmarks.scheduling.streams import Stream, failures
from inferflux.v1 import generation_pb2, tokens_pb2


def _chunk(offset: int, *ids: int, text: str = "") -> tokens_pb2.TokenChunk:
    return tokens_pb2.TokenChunk(offset=offset, token_ids=ids, text=text)


def _finished(reason: generation_pb2.FinishReason.ValueType) -> tokens_pb2.TokenChunk:
    return tokens_pb2.TokenChunk(finished=tokens_pb2.Finished(reason=reason))


def _stream(*arrivals_s: float, sent_s: float = 0.0, ended_s: float = 0.0) -> Stream:
    return Stream(sent_s, list(arrivals_s), counts=[1] * len(arrivals_s), ended_s=ended_s)


def test_a_whole_stream_lost_and_doubled_nothing() -> None:
    stream = Stream(0.0)
    for now, chunk in enumerate([_chunk(0, 5, 6, text="ab"), _chunk(2, 7, text="c")]):
        stream.take(chunk, float(now))
    assert (stream.token_ids, stream.counts, stream.text) == ([5, 6, 7], [2, 1], "abc")
    assert (stream.tokens, stream.lost, stream.doubled) == (3, 0, 0)


def test_tokens_that_never_came_are_lost_once() -> None:
    stream = Stream(0.0)
    for chunk in (_chunk(0, 5), _chunk(3, 8), _chunk(4, 9)):
        stream.take(chunk, 0.0)
    assert (stream.lost, stream.doubled) == (2, 0)


def test_tokens_that_come_again_are_doubled_and_kept_once() -> None:
    stream = Stream(0.0)
    for chunk in (_chunk(0, 5, 6), _chunk(1, 6, 7), _chunk(3, 8)):
        stream.take(chunk, 0.0)
    assert (stream.lost, stream.doubled) == (0, 1)
    assert stream.token_ids == [5, 6, 7, 8]
    assert figures.lost_or_doubled([stream, Stream(0.0, lost=2)]) == 3


@pytest.mark.parametrize(
    ("reason", "has_failed"),
    [
        (generation_pb2.FINISH_REASON_STOP, False),
        (generation_pb2.FINISH_REASON_LENGTH, False),
        (generation_pb2.FINISH_REASON_CANCELLED, True),
    ],
)
def test_only_a_complete_answer_is_no_failure(
    reason: generation_pb2.FinishReason.ValueType, has_failed: bool
) -> None:
    stream = Stream(0.0, ended_s=1.0)
    assert stream.has_failed
    stream.take(_finished(reason), 0.5)
    assert stream.has_failed is has_failed


def test_a_failed_chunk_says_why() -> None:
    stream = Stream(0.0)
    stream.take(tokens_pb2.TokenChunk(failed=tokens_pb2.Failed(reason="WORKER_LOST", message="gone")), 0.0)
    assert failures([stream, Stream(0.0)]) == ["WORKER_LOST: gone"]


def test_workers_are_noted_in_turn() -> None:
    stream = Stream(0.0)
    for worker in ("worker-0", "worker-1"):
        stream.take(tokens_pb2.TokenChunk(started=tokens_pb2.Started(worker_id=worker)), 0.0)
    assert stream.workers == ["worker-0", "worker-1"]


def test_a_rate_counts_every_token_that_came_within_its_window() -> None:
    stream = Stream(0.0, [1.0, 2.0, 3.0], counts=[1, 4, 2])
    assert figures.tokens_in([stream, _stream(2.5)], Window(2.0, 3.0)) == 5
    assert figures.rate_in([stream], Window(1.0, 5.0)) == pytest.approx(7 / 4)


def test_waits_are_those_of_what_was_sent_within_the_window() -> None:
    streams = [
        _stream(1.5, sent_s=1.0),
        _stream(9.0, sent_s=2.0),
        _stream(4.0, sent_s=3.0),
        _stream(sent_s=1.0),
    ]
    assert figures.first_tokens_s(streams, Window(1.0, 3.0)) == [0.5, 7.0]


@pytest.mark.parametrize(("first", "second", "value"), [(90, 100, 0.9), (100, 90, 0.9), (5, 0, 0.0)])
def test_evenness_does_not_ask_who_got_more(first: float, second: float, value: float) -> None:
    assert figures.evenness(first, second) == pytest.approx(value)


def test_without_a_tenant_served_there_is_no_evenness() -> None:
    assert math.isnan(figures.evenness(0, 0))


def test_the_longest_gap_is_one_that_touches_the_window() -> None:
    # 3 s of silence before it, 2 s into it, 4 s after it.
    stream = _stream(0.0, 3.0, 5.0, 5.5, 6.0, 10.0)
    assert figures.longest_gap_s([stream], Window(4.0, 5.8)) == pytest.approx(2.0)
    assert figures.longest_gap_s([stream], Window(4.0, 7.0)) == pytest.approx(4.0)


def test_silence_before_a_stream_ends_counts() -> None:
    assert figures.longest_gap_s([_stream(0.0, 1.0, ended_s=8.0)], Window(0.5, 100.0)) == pytest.approx(7.0)


def test_the_median_gap_leaves_out_what_is_outside_the_window() -> None:
    streams = [_stream(0.0, 50.0, 51.0, 52.0), _stream(50.0, 53.0)]
    assert figures.median_gap_s(streams, Window(50.0, 60.0)) == pytest.approx(1.0)


def test_a_text_changes_with_any_token() -> None:
    one, same, other = (Stream(0.0, token_ids=ids, text="a") for ids in ([1, 2], [1, 2], [1, 3]))
    assert figures.changed([one, one], [same, other]) == 1


def test_only_what_was_sent_afterwards_is_a_new_admission() -> None:
    earlier, later, latest = _stream(10.5, sent_s=9.0), _stream(12.0, sent_s=10.0), _stream(14.0, sent_s=11.0)
    assert figures.first_admission_s([earlier, latest, later], 10.0) == pytest.approx(2.0)
    assert math.isnan(figures.first_admission_s([earlier, _stream(sent_s=11.0)], 10.0))


def test_a_cancelled_request_may_keep_its_place_for_a_step() -> None:
    assert Freed(since_sent_s=0.25, since_answered_s=0.2, step_s=0.2).excess_ms == pytest.approx(50.0)
    assert Freed(since_sent_s=0.15, since_answered_s=0.1, step_s=0.2).excess_ms == 0.0
