"""Chunks of an answer under guardrails: whole, in order, and none that tells of what is blocked."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from inferflux.api.stream_state import StreamState, Verdict
from inferflux.common.text.guardrails.compiled import CompiledRules
from inferflux.common.text.guardrails.rules import Entry, RuleSet
from inferflux.common.text.guardrails.stream import StreamGuard
from inferflux.gateway.stream.chunk_guard import ChunkGuard
from inferflux.v1 import generation_pb2, tokens_pb2

Chunk = tokens_pb2.TokenChunk
FILTERED = generation_pb2.FINISH_REASON_CONTENT_FILTER


def guard(*blocked: str, patterns: tuple[str, ...] = (), window: int = 8) -> ChunkGuard:
    rules = RuleSet(blocked=tuple(Entry(text) for text in blocked), patterns=patterns, window=window)
    return ChunkGuard(StreamGuard([CompiledRules(rules)]))


def chunks_of(text: str, cuts: list[int], *, held: int = 0) -> list[Chunk]:
    """A token for each character; their text comes up to `held` characters late, which the chunks say."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    chunks, told = [], 0
    for begin, end in pairwise(places):
        until = max(told, end - held)
        ids = [ord(character) for character in text[begin:end]]
        chunks.append(
            Chunk(epoch=1, offset=begin, token_ids=ids, text=text[told:until], held_text=text[until:end])
        )
        told = until
    usage = generation_pb2.Usage(prompt_tokens=1, completion_tokens=len(text))
    finished = tokens_pb2.Finished(reason=generation_pb2.FINISH_REASON_STOP, usage=usage)
    chunks.append(Chunk(epoch=1, offset=len(text), text=text[told:], finished=finished, attempt_id="a"))
    return chunks


def run(guarded: ChunkGuard, chunks: list[Chunk]) -> list[Chunk]:
    return [sent for chunk in chunks for sent in guarded.take(chunk)]


def test_a_harmless_answer_passes_whole_with_its_end() -> None:
    sent = run(
        guard("secret"), [Chunk(started=tokens_pb2.Started(worker_id="w")), *chunks_of("it is fine", [3, 6])]
    )
    assert sent[0].HasField("started")
    assert "".join(chunk.text for chunk in sent) == "it is fine"
    assert [i for chunk in sent for i in chunk.token_ids] == [ord(c) for c in "it is fine"]
    assert sent[-1].finished.reason == generation_pb2.FINISH_REASON_STOP
    assert sent[-1].attempt_id == "a"


def test_a_finding_ends_the_answer_before_it() -> None:
    guarded = guard("secret")
    sent = run(guarded, chunks_of("the secret is out", list(range(20))))
    assert "".join(chunk.text for chunk in sent) == "the "
    assert [i for chunk in sent for i in chunk.token_ids] == [ord(c) for c in "the"]
    assert sent[-1].finished.reason == FILTERED
    assert sent[-1].text == " "
    assert sent[-1].offset == 3
    assert guarded.finding is not None
    assert guarded.take(Chunk(offset=17, token_ids=[1], text="x")) == []


def test_a_finding_in_the_last_chunk_keeps_what_that_says_of_the_job() -> None:
    sent = run(guard("out"), chunks_of("the secret is out", []))
    assert sent[-1].finished.reason == FILTERED
    assert sent[-1].finished.usage.completion_tokens == 17
    assert sent[-1].attempt_id == "a"


def test_an_answer_that_fails_says_so_after_its_text() -> None:
    chunks = [
        *chunks_of("half an ans", [4])[:-1],
        Chunk(epoch=1, offset=11, failed=tokens_pb2.Failed(code=14)),
    ]
    sent = run(guard("zebra"), chunks)
    assert "".join(chunk.text for chunk in sent) == "half an ans"
    assert sent[-1].HasField("failed")


@given(
    text=st.text(st.sampled_from("abc -é\u0301"), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=20),
    held=st.integers(0, 3),
)
def test_no_token_and_no_text_of_a_finding_is_sent_and_all_the_rest_is(
    text: str, cuts: list[int], held: int
) -> None:
    guarded = guard("abc", "c-é", patterns=("b{3}",))
    sent = run(guarded, chunks_of(text, cuts, held=held))
    assert all(not chunk.held_text or chunk.token_ids for chunk in sent)
    told = "".join(chunk.text for chunk in sent)
    ids = [i for chunk in sent for i in chunk.token_ids]
    assert text.startswith(told)
    assert ids == [ord(character) for character in text[: len(ids)]]
    if guarded.finding is None:
        assert told == text
        assert sent[-1].finished.reason == generation_pb2.FINISH_REASON_STOP
    else:
        assert len(ids) <= len(told)
        assert sent[-1].finished.reason == FILTERED
        whole = guard("abc", "c-é", patterns=("b{3}",))
        assert "".join(chunk.text for chunk in run(whole, chunks_of(text, []))) == told
    # A reader takes every chunk: none is a repeat, none leaves a gap.
    state = StreamState()
    assert all(state.offer(chunk) is Verdict.ACCEPT for chunk in sent)
    assert state.is_ended
