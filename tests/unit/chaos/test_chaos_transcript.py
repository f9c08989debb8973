"""What counts as a breach in what a client was sent."""

from __future__ import annotations

from chaos.transcript import Transcript
from chaos.workload import Order, Whim

from inferflux.v1 import generation_pb2, tokens_pb2

STOP = generation_pb2.FINISH_REASON_STOP
CANCELLED = generation_pb2.FINISH_REASON_CANCELLED
# "3, 2, 1.", two characters a token.
IDS = [30, 20, 10, 0]
TEXTS = ["3,", " 2", ", ", "1."]


def transcript(whim: Whim = Whim.NONE) -> Transcript:
    return Transcript(Order("r", 3, 1, 0, 0, whim=whim), "r", IDS, began_s=0.0)


def tokens(first: int, last: int, epoch: int = 1) -> tokens_pb2.TokenChunk:
    """The right tokens from one index up to another."""
    return tokens_pb2.TokenChunk(
        request_id="r",
        epoch=epoch,
        offset=first,
        token_ids=IDS[first:last],
        text="".join(TEXTS[first:last]),
    )


def end(
    reason: generation_pb2.FinishReason.ValueType = STOP, offset: int = 4, told: int = 4
) -> tokens_pb2.TokenChunk:
    chunk = tokens_pb2.TokenChunk(request_id="r", epoch=1, offset=offset)
    chunk.finished.reason = reason
    chunk.finished.usage.completion_tokens = told
    return chunk


def after(*chunks: tokens_pb2.TokenChunk, whim: Whim = Whim.NONE) -> Transcript:
    told = transcript(whim)
    for second, chunk in enumerate(chunks):
        told.add(chunk, float(second + 1))
    return told


def test_a_whole_answer_is_no_breach_however_it_was_cut() -> None:
    assert after(tokens(0, 4), end()).breaches() == []
    assert after(tokens(0, 1), tokens(1, 3, epoch=2), tokens(3, 4, epoch=2), end()).breaches() == []


def test_a_lost_token_is_a_breach() -> None:
    assert "lost" in after(tokens(0, 1), tokens(2, 4), end()).breaches()[0]


def test_a_doubled_token_is_a_breach() -> None:
    assert "doubled" in after(tokens(0, 2), tokens(1, 4), end()).breaches()[0]


def test_anything_after_the_end_is_a_breach() -> None:
    assert "after the end" in after(tokens(0, 4), end(), end()).breaches()[0]


def test_another_requests_chunk_is_a_breach() -> None:
    chunk = tokens(0, 4)
    chunk.request_id = "other"
    assert "another request" in after(chunk, end()).breaches()[0]


def test_another_text_is_a_breach_even_if_the_tokens_are_right() -> None:
    chunk = tokens(0, 4)
    chunk.text = "3, 2, 0."
    assert "the text" in after(chunk, end()).breaches()[0]


def test_an_answer_that_ends_early_is_a_breach() -> None:
    breaches = after(tokens(0, 3), end(offset=3, told=3)).breaches()
    assert any("the token list" in breach for breach in breaches)
    assert any("usage" in breach for breach in breaches)


def test_an_answer_cut_for_its_length_is_a_breach() -> None:
    length = generation_pb2.FINISH_REASON_LENGTH
    assert any("LENGTH" in breach for breach in after(tokens(0, 4), end(length)).breaches())


def test_a_cancelled_request_may_end_anywhere_with_what_it_had() -> None:
    told = after(tokens(0, 2), end(CANCELLED, 2, 2), whim=Whim.CANCEL)
    told.has_cancelled = True
    assert told.is_cancelled
    assert told.breaches() == []


def test_a_cancelled_request_must_have_had_the_beginning_of_the_answer() -> None:
    wrong = tokens_pb2.TokenChunk(request_id="r", epoch=1, token_ids=[9], text="9")
    told = after(wrong, end(CANCELLED, 1, 1), whim=Whim.CANCEL)
    told.has_cancelled = True
    assert "no beginning" in told.breaches()[0]


def test_an_unrequested_cancellation_is_a_breach() -> None:
    assert "without a request" in after(tokens(0, 2), end(CANCELLED, 2, 2)).breaches()[0]


def test_a_failure_is_a_breach_unless_it_had_to_be() -> None:
    told = after(tokens(0, 2))
    told.failure = "NO_WORKER: none"
    assert told.is_over
    assert told.breaches() == ["failed: NO_WORKER: none"]
    told.is_excused = True
    assert told.breaches() == []


def test_who_leaves_is_owed_nothing_but_what_came() -> None:
    told = after(tokens(0, 2), whim=Whim.LEAVE)
    told.has_left = True
    assert told.is_over
    assert told.breaches() == []


def test_the_longest_silence_is_between_tokens() -> None:
    told = transcript()
    for moment, chunk in ((1.0, tokens(0, 1)), (4.0, tokens(1, 2)), (4.5, tokens(2, 4)), (9.0, end())):
        told.add(chunk, moment)
    assert told.longest_silence_s == 3.0
