"""An answer from the cache is, token by token and character by character, the one a worker would give."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from harness.gateway import finished, queued, started, tokens
from hypothesis import given
from hypothesis import strategies as st

from inferflux.api.stream_state import StreamState, Verdict
from inferflux.gateway.answers.record import (
    LENGTH,
    MAX_ANSWER_BYTES,
    STOP,
    Recorder,
    cut,
    seal,
    stream_of,
    unseal,
)
from inferflux.v1 import answers_pb2, generation_pb2, tokens_pb2
from inferflux.worker.engine.plan.text import TextAssembler

Chunk = tokens_pb2.TokenChunk
Usage = generation_pb2.Usage

NAME, SALT = b"n" * 32, b"s" * 32


def generate(pieces: Sequence[bytes], stop: Sequence[str], max_tokens: int, at_once: int = 1) -> list[Chunk]:
    """What a worker publishes; the last piece is an end-of-generation token."""
    text, chunks = TextAssembler(stop), [Chunk(epoch=1)]
    chunks[0].started.worker_id = "w"
    for i, piece in enumerate(pieces):
        if i % at_once == 0:
            chunks.append(Chunk(epoch=1, offset=i))
        chunk = chunks[-1]
        chunk.token_ids.append(1000 + i)
        chunk.logprobs.add().chosen.token_id = 1000 + i
        chunk.text += text.push(piece)
        is_stopped = text.is_stopped or i == len(pieces) - 1
        if is_stopped or i + 1 == max_tokens:
            chunk.text += text.finish()
            chunk.held_text = ""
            chunk.finished.reason, chunk.finished.stop = STOP if is_stopped else LENGTH, text.stop
            chunk.finished.usage.completion_tokens = i + 1
            return chunks
        chunk.held_text = text.held
    raise AssertionError("no pieces")


def recorded(chunks: Sequence[Chunk]) -> answers_pb2.CachedAnswer:
    recorder = Recorder()
    for chunk in chunks:
        recorder.take(chunk)
    data = recorder.answer()
    assert data is not None
    return answers_pb2.CachedAnswer.FromString(data)


def said(chunks: Sequence[Chunk]) -> tuple[list[int], str, list[int], int]:
    """Token ids, text, tokens of the log-probabilities, and why it ended, as a reader has them."""
    state, read = StreamState(), []
    for chunk in chunks:
        copy = Chunk()
        copy.CopyFrom(chunk)
        if state.offer(copy) is Verdict.ACCEPT:
            read.append(copy)
    assert state.is_ended
    return (
        [i for chunk in read for i in chunk.token_ids],
        "".join(chunk.text for chunk in read),
        [each.chosen.token_id for chunk in read for each in chunk.logprobs],
        read[-1].finished.reason,
    )


def streamed(answer: answers_pb2.CachedAnswer) -> list[Chunk]:
    return stream_of(answer, request_id="r2", attempt_id="a2", model="m", prompt_tokens=5)


@st.composite
def pieces_of_text(draw: st.DrawFn) -> list[bytes]:
    raw = draw(st.text(alphabet="ab€é🙂", min_size=1, max_size=25)).encode()
    cuts = draw(st.sets(st.integers(0, len(raw))))
    edges = sorted({0, len(raw), *cuts})
    return [*(raw[a:b] for a, b in itertools.pairwise(edges)), b""]


STOPS = st.lists(st.text(alphabet="abé€\ufffd", min_size=1, max_size=4), max_size=2)


@given(pieces_of_text(), STOPS, st.integers(1, 40))
def test_a_shorter_answer_is_the_one_that_a_worker_gives_for_that_length(
    pieces: list[bytes], stop: list[str], max_tokens: int
) -> None:
    answer = recorded(generate(pieces, stop, max_tokens))
    n_tokens = sum(len(chunk.token_ids) for chunk in answer.chunks)
    for fewer in range(1, n_tokens + 1):
        wanted = cut(answer, fewer)
        assert wanted is not None
        assert said(streamed(wanted)) == said(generate(pieces, stop, fewer))


@given(pieces_of_text(), STOPS, st.integers(1, 40), st.integers(1, 40), st.integers(2, 4))
def test_an_answer_of_several_tokens_a_chunk_is_served_right_or_not_at_all(
    pieces: list[bytes], stop: list[str], max_tokens: int, wanted_tokens: int, at_once: int
) -> None:
    wanted = cut(recorded(generate(pieces, stop, max_tokens, at_once)), wanted_tokens)
    if wanted is not None:
        assert said(streamed(wanted)) == said(generate(pieces, stop, wanted_tokens))


def test_reasoning_is_told_and_counted_as_it_was() -> None:
    last = finished(4)
    last.finished.usage.reasoning_tokens = 3
    answer = recorded([started(), *(tokens(i) for i in range(4)), last])
    form = generation_pb2.AnswerFormat(reasoning=generation_pb2.REASONING_FORMAT_OPEN)
    for n_tokens, expected in ((4, 3), (3, 3), (2, 2)):
        wanted = cut(answer, n_tokens)
        assert wanted is not None
        chunks = stream_of(
            wanted, request_id="r", attempt_id="a", model="m", prompt_tokens=5, answer_format=form
        )
        assert chunks[0].answer_format == chunks[-1].answer_format == form
        assert chunks[-1].finished.usage.reasoning_tokens == expected


def test_an_answer_that_was_ended_by_its_length_is_no_longer_one() -> None:
    answer = recorded(generate([b"a", b"b", b"c", b""], [], 2))
    assert answer.reason == LENGTH
    assert cut(answer, 2) is not None
    assert cut(answer, 3) is None


def test_an_answer_that_ended_by_itself_serves_any_larger_length() -> None:
    answer = recorded(generate([b"a", b"b", b""], [], 100))
    wanted = cut(answer, 1000)
    assert wanted is not None
    assert said(streamed(wanted))[3] == STOP


def test_an_answer_is_not_cut_within_a_chunk() -> None:
    answer = recorded([tokens(0, 3), finished(4)])
    assert cut(answer, 2) is None
    assert cut(answer, 4) is not None


def test_a_streamed_answer_says_that_it_was_cached() -> None:
    chunks = streamed(recorded([started(), tokens(0), tokens(1), finished(2)]))
    assert chunks[0].HasField("started")
    assert {(chunk.request_id, chunk.epoch) for chunk in chunks} == {("r2", 1)}
    last = chunks[-1]
    assert last.attempt_id == "a2"
    assert last.finished.usage == Usage(prompt_tokens=5, completion_tokens=2, cached_completion_tokens=2)


def test_text_after_the_last_token_is_kept() -> None:
    end = finished(1)
    end.text = "end"
    assert said(streamed(recorded([tokens(0), end])))[1] == "0 end"


def test_a_stream_that_is_resumed_at_any_token_has_all_its_text() -> None:
    chunks = streamed(recorded([tokens(0), tokens(1), tokens(2), finished(3)]))
    state = StreamState(offset=1)
    assert "".join(c.text for c in chunks if state.offer(c) is Verdict.ACCEPT) == "1 2 "


@pytest.mark.parametrize(
    "chunks",
    [
        [tokens(0), tokens(1)],
        [tokens(0), finished(2)],
        [tokens(1), finished(2)],
        [tokens(0), tokens(1, epoch=2), finished(2, epoch=2)],
        [tokens(0), finished(1, reason=generation_pb2.FINISH_REASON_CANCELLED)],
        [tokens(0), finished(1, reason=generation_pb2.FINISH_REASON_SCHEMA_MISMATCH)],
        [tokens(0), Chunk(epoch=1, offset=1, failed=tokens_pb2.Failed(code=13))],
        [Chunk(epoch=1, token_ids=[1], text="x" * MAX_ANSWER_BYTES), finished(1)],
        [finished(0)],
        [],
    ],
    ids=[
        "no end",
        "a hole",
        "no begin",
        "retried",
        "cancelled",
        "not of its schema",
        "failed",
        "too large",
        "no token",
        "nothing",
    ],
)
def test_what_is_not_a_whole_undisturbed_answer_is_not_kept(chunks: list[Chunk]) -> None:
    recorder = Recorder()
    for chunk in chunks:
        recorder.take(chunk)
    assert recorder.answer() is None


def test_waiting_in_the_queue_is_no_part_of_the_answer() -> None:
    answer = recorded([queued(3), started(), tokens(0), finished(1)])
    assert [list(chunk.token_ids) for chunk in answer.chunks] == [[0]]


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_corrupt_or_foreign_answer_is_none(at: int, byte: int) -> None:
    recorder = Recorder()
    for chunk in (tokens(0), tokens(1), finished(2)):
        recorder.take(chunk)
    data = recorder.answer()
    assert data is not None
    sealed = seal(data, NAME, SALT)
    assert unseal(sealed, NAME, SALT) == answers_pb2.CachedAnswer.FromString(data)
    assert unseal(sealed, b"m" * 32, SALT) is None
    assert unseal(sealed, NAME, b"t" * 32) is None
    assert unseal(sealed[: at % len(sealed)], NAME, SALT) is None
    spoiled = bytearray(sealed)
    spoiled[at % len(sealed)] = byte
    if spoiled != sealed:
        assert unseal(bytes(spoiled), NAME, SALT) is None
