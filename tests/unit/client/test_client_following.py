"""One request over calls that a test plays: what is called next, and what ends it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from harness.profiles import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from inferflux.client import (
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    InferFluxError,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from inferflux.client.following import RESUME_PAUSE_S, Following, Patience, Step
from inferflux.v1 import generation_pb2, tokens_pb2

Chunk = tokens_pb2.TokenChunk
LOST = Unavailable("Stream removed", retry_delay_s=None)
NO_SERVER = Unavailable("failed to connect to all addresses; last error", retry_delay_s=None)
UNKNOWN = NotFound("nothing is known of it")
TAKEN = AlreadyExists("the request id is taken")
DRAINING = Unavailable("shutting down", reason="DRAINING", retry_delay_s=4.0)
NO_WORKER = Unavailable("no worker", reason="NO_WORKER", retry_delay_s=2.0)


def token(i: int, n: int = 1) -> Chunk:
    return Chunk(epoch=1, offset=i, token_ids=range(i, i + n), text="".join(f"{j} " for j in range(i, i + n)))


def finished(n: int) -> Chunk:
    return Chunk(epoch=1, offset=n, finished=tokens_pb2.Finished(reason=generation_pb2.FINISH_REASON_STOP))


def following(patience: Patience | None = None, *, n_gateways: int = 1, request_id: str = "") -> Following:
    ids = count(1)
    return Following(
        patience or Patience(60),
        n_gateways=n_gateways,
        request_id=request_id,
        new_id=lambda: f"drawn-{next(ids)}",
    )


def steps(one: Following, *errors: InferFluxError) -> list[Step]:
    return [one.after(error, float(i)) for i, error in enumerate(errors)]


def test_a_stream_that_is_lost_is_resumed_at_the_next_gateway_from_the_first_missing_token() -> None:
    one = following()
    assert one.first == Step(None)
    assert one.take(token(0, 3))
    assert steps(one, LOST, LOST) == [Step(3, 0.0, moves=True), Step(3, RESUME_PAUSE_S, moves=True)]
    assert one.resumes == 0
    assert one.take(token(3))
    assert one.resumes == 1
    assert one.take(finished(4))
    assert one.is_over


def test_a_call_that_was_lost_before_its_first_chunk_is_resumed_and_sent_again_when_it_is_unknown() -> None:
    one = following()
    assert [step.resumes_at for step in steps(one, LOST, UNKNOWN, TAKEN)] == [0, None, 0]
    assert one.request_id == "drawn-1"


def test_a_request_that_was_answered_is_never_sent_again() -> None:
    one = following()
    one.take(token(0))
    assert [step.resumes_at for step in steps(one, LOST, UNKNOWN, UNKNOWN)] == [1, 1, 1]


def test_what_was_never_sent_is_sent_again_under_its_id_at_the_next_gateway() -> None:
    one = following(n_gateways=2)
    assert steps(one, NO_SERVER, NO_SERVER) == [Step(None, 0.0, moves=True), Step(None, 0.5, moves=True)]
    assert one.request_id == "drawn-1"


def test_a_request_that_is_refused_for_now_is_sent_under_a_new_id_when_the_error_says() -> None:
    one = following()
    assert steps(one, DRAINING) == [Step(None, 4.0, moves=True)]
    assert one.request_id == "drawn-2"
    assert steps(one, ResourceExhausted("full", retry_delay_s=1.5)) == [Step(None, 1.5, moves=False)]
    with pytest.raises(Unavailable):
        one.after(DRAINING, 0.0)
    assert one.is_over


def test_the_callers_own_id_stays_and_gateways_know_the_request_by_its_key() -> None:
    one, other = following(request_id="mine"), following(request_id="mine")
    key = one.idempotency_key
    assert steps(one, DRAINING) == [Step(None, 4.0, moves=True)]
    assert (one.request_id, one.idempotency_key) == ("mine", key)
    assert other.idempotency_key != key


def test_another_request_id_has_another_key() -> None:
    one = following()
    key = one.idempotency_key
    assert steps(one, NO_SERVER) == [Step(None, 0.5, moves=True)]
    assert (one.request_id, one.idempotency_key) == ("drawn-1", key)
    assert steps(one, DRAINING) == [Step(None, 4.0, moves=True)]
    assert one.request_id == "drawn-2"
    assert one.idempotency_key != key


def test_a_request_that_failed_without_a_token_is_asked_anew_and_one_with_tokens_is_not() -> None:
    one = following()
    one.take(Chunk(epoch=1, queued=tokens_pb2.Queued(position=3)))
    assert steps(one, NO_WORKER) == [Step(None, 2.0, moves=True)]
    assert one.request_id == "drawn-2"
    one.take(token(0))
    with pytest.raises(Unavailable) as caught:
        one.after(NO_WORKER, 0.0)
    assert caught.value is NO_WORKER
    named = following(request_id="mine")
    with pytest.raises(Unavailable):
        named.after(NO_WORKER, 0.0)


@pytest.mark.parametrize(
    "refusal", [TAKEN, UNKNOWN, InvalidArgument("no", field="x"), Internal("a defect"), Cancelled("gone")]
)
@pytest.mark.parametrize("window_s", [0, 60])
def test_what_is_refused_at_first_is_an_error_at_once(refusal: InferFluxError, window_s: int) -> None:
    one = following(Patience(window_s))
    if isinstance(refusal, Cancelled) and window_s:
        assert one.after(refusal, 0.0).resumes_at == 0
        return
    with pytest.raises(InferFluxError) as caught:
        one.after(refusal, 0.0)
    assert caught.value is refusal
    assert one.is_over


def test_a_loss_is_an_error_without_a_window_and_when_it_has_passed() -> None:
    one = following(Patience(0))
    one.take(token(0))
    with pytest.raises(Unavailable):
        one.after(LOST, 0.0)
    other = following(Patience(5))
    other.take(token(0))
    assert other.after(LOST, 100.0).resumes_at == 1
    assert other.after(LOST, 104.0).resumes_at == 1
    with pytest.raises(Unavailable):
        other.after(LOST, 105.1)


def test_no_call_is_made_after_the_deadline() -> None:
    one = following(Patience(60, deadline_s=103.0))
    assert one.time_left_s(100.0) == 3.0
    with pytest.raises(Unavailable):
        one.after(DRAINING, 100.0)


def test_a_request_of_another_client_is_only_ever_resumed() -> None:
    one = Following(Patience(60), n_gateways=2, request_id="theirs", offset=7)
    assert one.first == Step(7)
    assert [step.resumes_at for step in steps(one, NO_SERVER, LOST)] == [7, 7]
    assert not one.must_be_cancelled
    unknown = Following(Patience(60), request_id="theirs", offset=7)
    with pytest.raises(NotFound):
        unknown.after(UNKNOWN, 0.0)


def test_missing_tokens_are_asked_for() -> None:
    one = following()
    one.take(token(0))
    with pytest.raises(Unavailable) as caught:
        one.take(token(2))
    assert one.after(caught.value, 0.0).resumes_at == 1


def test_only_a_request_that_would_go_on_must_be_cancelled() -> None:
    assert following().must_be_cancelled
    assert not following(Patience(0)).must_be_cancelled
    one = following()
    one.take(finished(0))
    assert not one.must_be_cancelled


@pytest.mark.parametrize(
    ("error", "goes_on"),
    [
        (Unavailable("tokens are gone", reason="TOKENS_LOST"), True),
        (Unavailable("nothing comes", reason="SILENT"), True),
        (PermissionDenied("not any more"), True),
        (Internal("a defect"), True),
        (NO_WORKER, False),
        (UNKNOWN, False),
        (DeadlineExceeded("too late"), False),
    ],
)
def test_a_request_whose_stream_is_given_up_must_be_cancelled_where_it_may_go_on(
    error: InferFluxError, goes_on: bool
) -> None:
    one = following(Patience(5))
    one.take(token(0))
    one.after(LOST, 0.0)
    with pytest.raises(InferFluxError):
        one.after(error, 100.0)
    assert one.is_over
    assert one.must_be_cancelled is goes_on
    one.end()
    assert not one.must_be_cancelled


def test_what_was_refused_or_has_no_window_needs_no_cancel() -> None:
    refused = following()
    with pytest.raises(InvalidArgument):
        refused.after(InvalidArgument("no", field="x"), 0.0)
    assert not refused.must_be_cancelled
    without_window = following(Patience(0))
    without_window.take(token(0))
    with pytest.raises(Unavailable):
        without_window.after(LOST, 0.0)
    assert not without_window.must_be_cancelled


class Server:
    """Gateways that may lose any call after any number of chunks, and resume where they are asked to.

    They may repeat the last chunk that was given.
    """

    def __init__(self, n_tokens: int, draw: Iterator[int]) -> None:
        self._n_tokens = n_tokens
        self._draw = draw
        self.runs = False
        self.n_sent = 0
        self._last: Chunk | None = None

    def call(self, step: Step) -> Iterator[Chunk]:
        if step.resumes_at is None:
            if self.runs:
                raise TAKEN
            if next(self._draw) % 3 == 0:
                raise LOST  # on the way there
            self.runs = True
            self.n_sent += 1
        elif not self.runs:
            raise UNKNOWN
        at = step.resumes_at or 0
        if self._last is not None and next(self._draw) % 2:
            yield self._last
        while True:
            if next(self._draw) % 4 == 0:
                raise LOST
            if at >= self._n_tokens:
                yield finished(self._n_tokens)
                return
            n = min(1 + next(self._draw) % 3, self._n_tokens - at)
            self._last = token(at, n)
            yield self._last
            at += n


@given(st.integers(0, 9), st.lists(st.integers(0, 11), max_size=60))
@settings(max_examples=examples(300))
def test_each_token_comes_once_and_in_order_whatever_calls_are_lost(n_tokens: int, drawn: list[int]) -> None:
    server = Server(n_tokens, iter([*drawn, *([1] * 200)]))
    one = following()
    step, text = one.first, ""
    ids: list[int] = []
    while not one.is_over:
        try:
            for chunk in server.call(step):
                if one.take(chunk):
                    text += chunk.text
                    ids += chunk.token_ids
        except InferFluxError as error:
            step = one.after(error, 0.0)
    assert ids == list(range(n_tokens))
    assert text == "".join(f"{i} " for i in range(n_tokens))
    assert server.n_sent == 1
