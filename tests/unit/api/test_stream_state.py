"""A reader of a token stream passes every token on once and in order, whatever the network does."""

from __future__ import annotations

from harness.profiles import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from inferflux.api.stream_state import StreamState, Verdict, can_merge, merge
from inferflux.v1 import generation_pb2, tokens_pb2

Chunk = tokens_pb2.TokenChunk


def tokens(first: int, n: int = 1, *, epoch: int = 1) -> Chunk:
    text = "".join(f"{i} " for i in range(first, first + n))
    return Chunk(epoch=epoch, offset=first, token_ids=range(first, first + n), text=text)


def finished(n: int, *, epoch: int = 1) -> Chunk:
    return Chunk(
        epoch=epoch, offset=n, finished=tokens_pb2.Finished(reason=generation_pb2.FINISH_REASON_STOP)
    )


def started(offset: int = 0, *, epoch: int = 1) -> Chunk:
    return Chunk(epoch=epoch, offset=offset, started=tokens_pb2.Started(worker_id="w"))


def queued(position: int, *, offset: int = 0, epoch: int = 1) -> Chunk:
    return Chunk(epoch=epoch, offset=offset, queued=tokens_pb2.Queued(position=position))


def offer_all(state: StreamState, *chunks: Chunk) -> list[Verdict]:
    return [state.offer(chunk) for chunk in chunks]


A, S, G = Verdict.ACCEPT, Verdict.SKIP, Verdict.GAP


def test_tokens_in_order_are_accepted() -> None:
    state = StreamState()
    assert offer_all(state, queued(3), started(), tokens(0), tokens(1, 2), finished(3)) == [A, A, A, A, A]
    assert state.is_ended
    assert state.next_offset == 3


def test_tokens_that_exist_are_told_from_those_a_reader_claims_to_have() -> None:
    state = StreamState(4_294_967_290)
    assert offer_all(state, started(), tokens(0), tokens(1, 2)) == [A, S, S]
    assert state.tokens_end == 3
    assert offer_all(state, finished(5)) == [A]
    assert state.tokens_end == 5


def test_a_merged_end_keeps_its_attempt() -> None:
    first, last = tokens(0), finished(1)
    last.attempt_id = "a1"
    assert can_merge(first, last)
    merge(first, last)
    assert first.attempt_id == "a1"


def test_repeats_are_dropped() -> None:
    state = StreamState()
    chunks = (started(), tokens(0), started(), tokens(0), queued(1), tokens(1))
    assert offer_all(state, *chunks) == [A, A, S, S, S, A]


def test_nothing_follows_the_terminal_chunk() -> None:
    state = StreamState()
    assert offer_all(state, finished(0), tokens(0), finished(0), tokens(0, epoch=2)) == [A, S, S, S]


def test_a_hole_is_a_gap_and_leaves_the_state_alone() -> None:
    state = StreamState()
    assert offer_all(state, tokens(0), tokens(2), finished(3), tokens(1), tokens(2), finished(3)) == [
        A, G, G, A, A, A,
    ]  # fmt: skip


def test_an_older_epoch_is_dropped_once_the_newer_has_spoken() -> None:
    state = StreamState()
    assert offer_all(state, tokens(0), started(1, epoch=2), tokens(1), finished(1), tokens(1, epoch=2)) == [
        A, A, S, S, A,
    ]  # fmt: skip


def test_a_gap_before_a_newer_epoch_is_filled_by_the_older() -> None:
    state = StreamState()
    assert offer_all(state, tokens(0), tokens(2, epoch=2), tokens(1), tokens(2, epoch=2), tokens(3)) == [
        A, G, A, A, S,
    ]  # fmt: skip


def test_a_newer_epoch_that_starts_over_is_read_on_where_the_reader_is() -> None:
    state = StreamState()
    offer_all(state, tokens(0, 4))
    assert offer_all(state, started(2, epoch=2), tokens(2, 1, epoch=2), tokens(3, 1, epoch=2)) == [A, S, S]
    assert state.offer(tokens(4, epoch=2)) is A


def test_a_chunk_that_overlaps_is_cut_with_its_text() -> None:
    state = StreamState()
    offer_all(state, tokens(0, 2), tokens(2), tokens(3))
    chunk = tokens(2, 4, epoch=2)
    assert state.offer(chunk) is A
    assert (chunk.offset, list(chunk.token_ids), chunk.text) == (4, [4, 5], "4 5 ")


def test_a_chunk_is_cut_though_another_attempt_began_its_chunks_elsewhere() -> None:
    state = StreamState()
    offer_all(state, tokens(0, 2), tokens(2, 5))
    assert offer_all(state, tokens(2, 2, epoch=2), tokens(4, epoch=2)) == [S, S]
    chunk = tokens(5, 4, epoch=2)
    assert state.offer(chunk) is A
    assert (chunk.offset, list(chunk.token_ids), chunk.text) == (7, [7, 8], "7 8 ")


def test_a_chunk_is_cut_after_a_start_whose_tokens_were_seen() -> None:
    """The chunk that says who goes on has tokens as well."""
    state = StreamState(offset=7)
    assert offer_all(state, tokens(2, 5)) == [S]
    first = tokens(2, 3, epoch=2)
    first.started.worker_id = "w2"
    chunk = tokens(5, 4, epoch=2)
    assert offer_all(state, first, chunk) == [A, A]
    assert (list(first.token_ids), first.text) == ([], "")
    assert (chunk.offset, list(chunk.token_ids), chunk.text) == (7, [7, 8], "7 8 ")


def test_text_is_left_out_where_it_cannot_be_told_whose_it_is() -> None:
    state = StreamState(offset=3)
    chunk = tokens(2, 3)
    assert state.offer(chunk) is A
    assert (chunk.offset, list(chunk.token_ids), chunk.text) == (3, [3, 4], "")


def test_the_text_of_what_a_reader_has_is_known_from_repeats() -> None:
    """A reader resumes at another gateway: what it has comes again first, then a chunk of a later attempt."""
    state = StreamState(offset=4)
    assert offer_all(state, tokens(0, 2), tokens(2, 2)) == [S, S]
    chunk = tokens(2, 4, epoch=2)
    assert state.offer(chunk) is A
    assert (chunk.offset, list(chunk.token_ids), chunk.text) == (4, [4, 5], "4 5 ")


def test_the_text_of_repeats_with_a_hole_is_not_taken_for_whole() -> None:
    state = StreamState(offset=4)
    assert offer_all(state, tokens(0), tokens(2)) == [S, S]
    chunk = tokens(2, 4)
    assert state.offer(chunk) is A
    assert chunk.text == ""


def test_an_overlapping_chunk_keeps_the_log_probabilities_of_what_is_new() -> None:
    state = StreamState()
    offer_all(state, tokens(0))
    chunk = tokens(0, 2)
    chunk.logprobs.extend(
        tokens_pb2.TokenLogprobs(chosen=tokens_pb2.TokenLogprob(token_id=i)) for i in range(2)
    )
    assert state.offer(chunk) is A
    assert [entry.chosen.token_id for entry in chunk.logprobs] == [1]


def test_a_terminal_chunk_whose_tokens_were_seen_still_ends_the_stream() -> None:
    state = StreamState(offset=2)
    chunk = tokens(0, 2)
    chunk.finished.reason = generation_pb2.FINISH_REASON_LENGTH
    assert state.offer(chunk) is A
    assert (chunk.offset, len(chunk.token_ids), chunk.text) == (2, 0, "")
    assert state.is_ended


def test_events_say_where_the_reader_is() -> None:
    state = StreamState(offset=4)
    chunk = started(0)
    assert state.offer(chunk) is A
    assert chunk.offset == 4


def test_who_goes_on_is_told_even_by_a_chunk_whose_tokens_were_seen() -> None:
    state = StreamState()
    offer_all(state, started(), tokens(0, 4))
    first, again = tokens(2, epoch=2), tokens(2, epoch=2)
    for chunk in (first, again):
        chunk.started.worker_id = "w2"
    assert offer_all(state, first, again, tokens(3, epoch=2), tokens(4, epoch=2)) == [A, S, S, A]
    assert (first.offset, len(first.token_ids), first.text, first.started.worker_id) == (4, 0, "", "w2")


def test_a_queued_chunk_never_opens_a_gap() -> None:
    state = StreamState()
    assert offer_all(state, queued(1, offset=7, epoch=2), tokens(0)) == [S, A]


def test_neighbours_merge_into_what_they_say_together() -> None:
    first, second, end = tokens(0, 2), tokens(2), finished(3)
    second.sampled_unix_us = 9
    assert can_merge(first, second)
    merge(first, second)
    assert can_merge(first, end)
    merge(first, end)
    assert list(first.token_ids) == [0, 1, 2]
    assert first.text == "0 1 2 "
    assert first.sampled_unix_us == 9
    assert first.finished.reason == generation_pb2.FINISH_REASON_STOP


def test_what_differs_does_not_merge() -> None:
    failed = Chunk(epoch=1, offset=1, failed=tokens_pb2.Failed(code=14))
    assert not can_merge(tokens(0), tokens(1, epoch=2))
    assert not can_merge(tokens(0), tokens(2))
    assert not can_merge(tokens(0), started(1))
    assert not can_merge(tokens(0), failed)
    assert not can_merge(started(), finished(0))


def test_merged_chunks_stay_small_enough_to_send() -> None:
    def merged_size(template: Chunk) -> int:
        whole = Chunk(epoch=1)
        while True:
            chunk = Chunk(epoch=1, offset=len(whole.token_ids), token_ids=[1], logprobs=template.logprobs)
            if not can_merge(whole, chunk):
                return whole.ByteSize()
            merge(whole, chunk)

    top = [tokens_pb2.TokenLogprob(token_id=9, text="x" * 32, logprob=-1.0)] * 20
    assert merged_size(Chunk()) < 64 << 10
    assert merged_size(Chunk(logprobs=[tokens_pb2.TokenLogprobs(top=top)])) < 256 << 10


@st.composite
def _published(draw: st.DrawFn) -> tuple[int, list[Chunk]]:
    """A whole generation over some epochs, as its workers published it: each epoch goes on where the tokens
    known to the scheduler ended, which may be before what the last worker still said."""
    n = draw(st.integers(1, 20))
    chunks = [queued(1)]
    at = 0
    epoch = 1
    while True:
        chunks.append(started(at, epoch=epoch))
        dies_at = draw(st.integers(at, n))
        is_last = epoch == 4 or draw(st.booleans())
        end = n if is_last else dies_at
        while at < end:
            size = draw(st.integers(1, min(3, end - at)))
            chunks.append(tokens(at, size, epoch=epoch))
            at += size
        if is_last:
            chunks.append(finished(n, epoch=epoch))
            return n, chunks
        at = draw(st.integers(max(0, at - 3), at))
        epoch += 1


@settings(max_examples=examples(300))
@given(published=_published(), data=st.data())
def test_after_loss_repeats_and_disorder_a_replay_gives_every_token_once(
    published: tuple[int, list[Chunk]], data: st.DataObject
) -> None:
    n, chunks = published
    live = [c for c in chunks for _ in range(data.draw(st.sampled_from([0, 1, 1, 1, 2])))]
    for _ in range(data.draw(st.integers(0, 3))):
        if len(live) > 1:
            i = data.draw(st.integers(0, len(live) - 2))
            live[i], live[i + 1] = live[i + 1], live[i]
    state = StreamState()
    accepted: list[Chunk] = []
    for original in [*live, *chunks]:  # the live stream, then all of the replay buffer
        chunk = Chunk.FromString(original.SerializeToString())
        if state.offer(chunk) is Verdict.ACCEPT:
            accepted.append(chunk)
    ids = [i for chunk in accepted for i in chunk.token_ids]
    assert ids == list(range(n))
    assert state.is_ended
    assert sum(chunk.HasField("finished") for chunk in accepted) == 1
    assert accepted[-1].HasField("finished")
    epochs = [chunk.epoch for chunk in accepted]
    assert epochs == sorted(epochs)


@settings(max_examples=examples(200))
@given(published=_published(), start=st.integers(0, 20))
def test_a_reader_that_comes_late_gets_what_it_lacks(published: tuple[int, list[Chunk]], start: int) -> None:
    n, chunks = published
    start = min(start, n)
    state = StreamState(offset=start)
    accepted = [c for c in chunks if state.offer(c) is Verdict.ACCEPT]
    assert [i for chunk in accepted for i in chunk.token_ids] == list(range(start, n))
    assert state.is_ended


@settings(max_examples=examples(200))
@given(published=_published())
def test_merged_chunks_say_the_same(published: tuple[int, list[Chunk]]) -> None:
    n, chunks = published
    state = StreamState()
    merged: list[Chunk] = []
    for chunk in chunks:
        if state.offer(chunk) is not Verdict.ACCEPT:
            continue
        if merged and can_merge(merged[-1], chunk):
            merge(merged[-1], chunk)
        else:
            merged.append(chunk)
    assert [i for chunk in merged for i in chunk.token_ids] == list(range(n))
    at = 0
    for chunk in merged:
        if chunk.token_ids:
            assert chunk.offset == at
            at += len(chunk.token_ids)
    assert merged[-1].HasField("finished")
