"""Streams over calls that a test plays: requests whose stream is given up, and deltas."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
import pytest

from inferflux.client import AsyncStream, InferFluxError, Stream
from inferflux.client.following import Following, Patience, Step
from inferflux.v1 import generation_pb2, inference_pb2, tokens_pb2

Delta = inference_pb2.ChatDelta
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class Call:
    """Gives its responses, then fails."""

    def __init__(self, responses: Sequence[Any], code: grpc.StatusCode) -> None:
        self._responses = iter(responses)
        self._error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "played")

    def __next__(self) -> Any:
        response = next(self._responses, None)
        if response is None:
            raise self._error
        return response

    async def read(self) -> Any:
        return next(self)

    def cancel(self) -> bool:
        return True


class Calls:
    """The calls of one request, one after the other."""

    address = "played:1"

    def __init__(self, *calls: Call) -> None:
        self._calls = deque(calls)

    def open(self, _step: Step, _following: Following) -> Call:
        return self._calls.popleft()


def chunk(i: int) -> tokens_pb2.TokenChunk:
    return tokens_pb2.TokenChunk(epoch=1, offset=i, token_ids=[7], text=str(i))


def chat(i: int) -> inference_pb2.ChatResponse:
    return inference_pb2.ChatResponse(chunk=chunk(i), delta=Delta(content=str(i)))


def taken_up(i: int) -> inference_pb2.ResumeResponse:
    return inference_pb2.ResumeResponse(chunk=chunk(i), delta=Delta(content=str(i)))


def end(i: int) -> inference_pb2.ResumeResponse:
    finished = tokens_pb2.Finished(reason=generation_pb2.FINISH_REASON_STOP)
    return inference_pb2.ResumeResponse(chunk=tokens_pb2.TokenChunk(epoch=1, offset=i, finished=finished))


def refused_when_resumed() -> Calls:
    return Calls(Call([chat(0)], UNAVAILABLE), Call([], grpc.StatusCode.PERMISSION_DENIED))


def following() -> Following:
    return Following(Patience(30), request_id="r1")


def never(_request_id: str, *, is_known: bool) -> Any:
    raise AssertionError(f"nothing is to be cancelled (known: {is_known})")


@pytest.mark.parametrize("could_cancel", [True, False])
def test_a_request_whose_stream_is_given_up_is_cancelled_or_the_error_says_that_it_may_go_on(
    could_cancel: bool,
) -> None:
    ended: list[tuple[str, bool]] = []

    def cancels(request_id: str, *, is_known: bool) -> bool:
        ended.append((request_id, is_known))
        return could_cancel

    stream = Stream(refused_when_resumed(), following(), end=cancels, end_later=never)
    with pytest.raises(InferFluxError) as given_up:
        list(stream)
    assert ended == [("r1", True)]
    notes = getattr(given_up.value, "__notes__", [])
    assert notes == ([] if could_cancel else ["the request r1 could not be cancelled: it may go on for 30 s"])


@pytest.mark.parametrize("could_cancel", [True, False])
async def test_for_asyncio_too(could_cancel: bool) -> None:
    ended: list[tuple[str, bool]] = []

    async def cancels(request_id: str, *, is_known: bool) -> bool:
        ended.append((request_id, is_known))
        return could_cancel

    stream = AsyncStream(refused_when_resumed(), following(), end=cancels, end_later=never)
    with pytest.raises(InferFluxError) as given_up:
        await stream.text()
    assert ended == [("r1", True)]
    assert bool(getattr(given_up.value, "__notes__", [])) is not could_cancel


def test_deltas_go_on_when_a_stream_is_resumed() -> None:
    calls = Calls(
        Call([chat(0), chat(1)], UNAVAILABLE),
        # The first one repeats what has come.
        Call([taken_up(1), taken_up(2), end(3)], UNAVAILABLE),
    )
    stream = Stream(calls, following(), end=never, end_later=never)
    said = [stream.delta.content if stream.delta else None for _ in stream]
    assert said == ["0", "1", "2", None]
    assert stream.resumes == 1


def test_no_call_outlives_its_stream() -> None:
    """The ending interpreter would collect it, and wait for ever for a lock of a thread that is gone."""
    first, second = Call([chat(0)], UNAVAILABLE), Call([end(1)], UNAVAILABLE)
    calls = weakref.ref(first), weakref.ref(second)
    stream = Stream(Calls(first, second), following(), end=never, end_later=never)
    del first, second
    gc.disable()
    try:
        list(stream)
        assert [call() for call in calls] == [None, None]
    finally:
        gc.enable()
