"""Chunks put together as a reader does."""

from __future__ import annotations

from inferflux.scheduler.core.types.replayed import assemble
from inferflux.scheduler.edge.replay import decode
from inferflux.v1 import generation_pb2, tokens_pb2


def chunk(epoch: int, offset: int, *ids: int) -> tokens_pb2.TokenChunk:
    return tokens_pb2.TokenChunk(epoch=epoch, offset=offset, token_ids=ids)


def finished(epoch: int, offset: int) -> tokens_pb2.TokenChunk:
    end = chunk(epoch, offset)
    end.finished.reason = generation_pb2.FINISH_REASON_STOP
    return end


def test_repeats_are_dropped_and_overlaps_cut() -> None:
    emitted = assemble([chunk(1, 0, 5, 6), chunk(1, 0, 5, 6), chunk(2, 1, 6, 7, 8)])
    assert (emitted.token_ids, emitted.epoch, emitted.outcome) == ([5, 6, 7, 8], 2, "")


def test_an_end_counts_unless_it_is_of_an_older_epoch() -> None:
    assert assemble([chunk(1, 0, 5), finished(1, 1), chunk(2, 1, 6)]).outcome == "stop"
    late = assemble([chunk(1, 0, 5), chunk(2, 1, 6), finished(1, 1)])
    assert (late.outcome, late.token_ids) == ("", [5, 6])


def test_tokens_end_before_a_gap_but_the_end_is_still_seen() -> None:
    emitted = assemble([chunk(1, 0, 5), chunk(1, 3, 8), finished(1, 4)])
    assert (emitted.token_ids, emitted.outcome) == ([5], "stop")
    assert assemble([chunk(1, 2, 7)]).token_ids == []


def test_what_is_no_chunk_is_ignored() -> None:
    assert decode([b"\xff\xff", chunk(1, 0, 5).SerializeToString()]) == [chunk(1, 0, 5)]
