"""Chunks of a token subject come in any order, repeatedly, of several epochs; tokens leave in their order."""

from __future__ import annotations

from harness.profiles import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from inferflux.api.ordering import InOrder
from inferflux.v1 import generation_pb2, tokens_pb2

Chunk = tokens_pb2.TokenChunk
FINISHED = tokens_pb2.Finished(reason=generation_pb2.FINISH_REASON_STOP)


def tokens(first: int, n: int = 1, *, epoch: int = 1) -> Chunk:
    text = "".join(f"{i} " for i in range(first, first + n))
    return Chunk(epoch=epoch, offset=first, token_ids=range(first, first + n), text=text)


def finished(n: int, *, epoch: int = 1) -> Chunk:
    return Chunk(epoch=epoch, offset=n, finished=FINISHED)


def given_of(merged: InOrder, *chunks: Chunk) -> list[int]:
    return [i for chunk in chunks for accepted in merged.offer(chunk) for i in accepted.token_ids]


def test_what_comes_beyond_a_gap_waits_for_it() -> None:
    merged = InOrder()
    assert given_of(merged, tokens(0), tokens(2), tokens(3)) == [0]
    assert merged.missing == range(1, 2)
    assert given_of(merged, tokens(1)) == [1, 2, 3]
    assert merged.missing is None
    assert not merged.state.is_ended
    assert merged.offer(finished(4))
    assert merged.state.is_ended


def test_what_an_older_attempt_said_beyond_a_gap_is_not_waited_for() -> None:
    merged = InOrder()
    assert given_of(merged, tokens(0), tokens(5)) == [0]
    assert given_of(merged, tokens(1, epoch=2)) == [1]
    assert merged.missing is None
    assert given_of(merged, tokens(3, epoch=2)) == []
    assert merged.offer(finished(2, epoch=2))
    assert merged.missing is None


def test_a_reader_that_has_some_tokens_gets_the_others() -> None:
    assert given_of(InOrder(2), tokens(0, 2), tokens(2), tokens(2), tokens(3)) == [2, 3]


@st.composite
def published(draw: st.DrawFn) -> tuple[int, list[Chunk]]:
    """What several attempts publish of an answer, and what becomes of it on the way.

    Every attempt goes on where an earlier one was, the last one to the end. At the end all of it comes again,
    in order, as the replay stream has it.
    """
    n_tokens = draw(st.integers(0, 12))
    said: list[Chunk] = []
    begin = 0
    n_epochs = draw(st.integers(1, 3))
    for epoch in range(1, n_epochs + 1):
        end = n_tokens if epoch == n_epochs else draw(st.integers(begin, n_tokens))
        at = begin
        while at < end:
            n = draw(st.integers(1, end - at))
            said.append(tokens(at, n, epoch=epoch))
            at += n
        begin = draw(st.integers(0, end)) if epoch < n_epochs else end
    said.append(finished(n_tokens, epoch=n_epochs))
    kept = [chunk for chunk in said if draw(st.booleans())]
    repeated = draw(st.lists(st.sampled_from(said), max_size=8))
    return n_tokens, [*draw(st.permutations([*kept, *repeated])), *said]


@given(published())
@settings(max_examples=examples(300))
def test_each_token_is_given_once_and_in_order_whatever_the_network_does(
    case: tuple[int, list[Chunk]],
) -> None:
    n_tokens, chunks = case
    merged = InOrder()
    accepted = []
    for chunk in chunks:
        copy = Chunk()
        copy.CopyFrom(chunk)
        accepted += merged.offer(copy)
    assert [i for chunk in accepted for i in chunk.token_ids] == list(range(n_tokens))
    assert sum(chunk.HasField("finished") for chunk in accepted) == 1
    assert merged.state.is_ended
