"""A client that does as a good client should.

It sends a request under an id of its own. A connection that breaks, or a gateway that cannot at present, is
no answer: the request is sent again under the same id, or, once a chunk came, resumed at its offset.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

import grpc.aio
from harness.client import Client, countdown

from inferflux.common.contract.errors import (
    AlreadyExists,
    Cancelled,
    InferFluxError,
    NotFound,
    ResourceExhausted,
    Unavailable,
    from_rpc,
)
from inferflux.v1 import inference_pb2, tokens_pb2

from .transcript import Transcript
from .workload import Order, Whim, countdown_text, turns_before

# How long one request may take, whatever happens.
PATIENCE_S = 60.0
# An accepted request must not stay unknown for longer than this.
_UNKNOWN_LIMIT_S = 10.0
_RETRY_S = 0.2
# Longer than any fault lasts.
RESUME_WINDOW_S = 60
# gRPC itself cancels calls that reach a server the moment it closes.
_PASSING = (Unavailable, ResourceExhausted, Cancelled)
# UNAVAILABLE that is the end of the request, not of the attempt.
_FINAL = frozenset({"NO_WORKER", "RETRIES_EXHAUSTED", "REFUSED", "SILENT", "TOKENS_LOST"})


def asked(order: Order) -> inference_pb2.ChatRequest:
    """The request of an order, with the conversation before it."""
    request = countdown(order.start, order.end)
    question = request.messages.pop()
    for start, end in turns_before(order.turns, order.start):
        request.messages.extend(countdown(start, end).messages)
        request.messages.add(role="assistant", content=countdown_text(start, end))
    request.messages.append(question)
    return request


class _Response(Protocol):
    @property
    def chunk(self) -> tokens_pb2.TokenChunk: ...


class _Call(Protocol):
    def __aiter__(self) -> AsyncIterator[_Response]: ...
    def cancel(self) -> bool: ...


class Caller:
    """Sends requests, each to its end.

    Args:
        clients: one per tenant.
        expected: token ids of each prompt's answer.
        is_poisoned: whether a request that began then may have run on two dying engines.
        clock: monotonic, in seconds.
        resume_window_s: how long a request may go on while its client is cut off from the gateway.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        expected: Mapping[tuple[int, int], list[int]],
        *,
        is_poisoned: Callable[[float], bool],
        clock: Callable[[], float],
        resume_window_s: int = 0,
    ) -> None:
        self._clients = clients
        self._expected = expected
        self._is_poisoned = is_poisoned
        self._clock = clock
        self._resume_window_s = resume_window_s
        self.underway: dict[str, Transcript] = {}

    async def serve(self, order: Order) -> Transcript:
        """Send a request and read to its end."""
        transcript = Transcript(
            order=order,
            request_id=order.request_id,
            expected=self._expected[order.start, order.end],
            began_s=self._clock(),
        )
        self.underway[order.request_id] = transcript
        conversation = _Conversation(
            self._clients[order.tenant], transcript, self._is_poisoned, self._clock, self._resume_window_s
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                await conversation.run()
        except TimeoutError:
            conversation.stop(f"not over after {PATIENCE_S:g} s")
        del self.underway[order.request_id]
        return transcript


class _Conversation:
    """One request, over as many calls as it takes."""

    def __init__(
        self,
        client: Client,
        transcript: Transcript,
        is_poisoned: Callable[[float], bool],
        clock: Callable[[], float],
        resume_window_s: int,
    ) -> None:
        self._client = client
        self._transcript = transcript
        self._is_poisoned = is_poisoned
        self._clock = clock
        self._resume_window_s = resume_window_s
        # There is, or may be, a stream to resume.
        self._is_accepted = False
        self._unknown_since = 0.0
        self._canceller: asyncio.Task[None] | None = None

    async def run(self) -> None:
        try:
            while not self._transcript.is_over:
                await self._attempt()
        finally:
            if self._canceller is not None:
                self._canceller.cancel()
                await asyncio.gather(self._canceller, return_exceptions=True)

    def stop(self, why: str) -> None:
        """It is not to be waited for any longer; excused if no gateway could ever be reached."""
        self._transcript.failure = why
        self._transcript.is_excused = not self._is_accepted and not self._transcript.has_chunks

    async def _attempt(self) -> None:
        transcript = self._transcript
        call = self._resume() if self._is_accepted else self._ask()
        try:
            if self._follow_whim(has_chunks=False):
                return
            async for response in call:
                self._unknown_since = 0.0
                transcript.add(response.chunk, self._clock())
                if self._follow_whim(has_chunks=True):
                    return
            if transcript.terminal is None:
                transcript.failure = "the stream ended without a terminal chunk"
        except grpc.aio.AioRpcError as error:
            await self._on_error(from_rpc(error))
        finally:
            call.cancel()

    def _ask(self) -> _Call:
        order = self._transcript.order
        assert isinstance(order, Order)
        request = asked(order)
        request.priority = order.priority
        # Who leaves on a whim says that nothing is to be resumed.
        request.resume_window_s = 0 if order.whim is Whim.LEAVE else self._resume_window_s
        metadata = self._client.metadata(self._transcript.request_id)
        call: _Call = self._client.inference.Chat(request, metadata=metadata)
        return call

    def _resume(self) -> _Call:
        self._transcript.resumes += 1
        request = inference_pb2.ResumeRequest(
            request_id=self._transcript.request_id, offset=self._transcript.offset
        )
        call: _Call = self._client.inference.Resume(request, metadata=self._client.metadata())
        return call

    async def _on_error(self, error: InferFluxError) -> None:
        transcript = self._transcript
        if isinstance(error, AlreadyExists) and not self._is_accepted:
            self._is_accepted = True
        elif isinstance(error, NotFound) and self._is_accepted:
            await self._on_unknown()
        elif isinstance(error, _PASSING) and not self._is_final(error):
            self._is_accepted |= transcript.has_chunks
            await asyncio.sleep(_RETRY_S)
        else:
            transcript.failure = f"{error.reason}: {error.message}"
            transcript.is_excused = error.reason == "POISON_REQUEST" and self._is_poisoned(transcript.began_s)

    def _is_final(self, error: InferFluxError) -> bool:
        return error.reason in _FINAL and (self._is_accepted or self._transcript.has_chunks)

    async def _on_unknown(self) -> None:
        """Nothing is known of it: it never came there, or no scheduler has had time to report it."""
        if not self._transcript.has_chunks:
            self._is_accepted = False
            return
        now = self._clock()
        self._unknown_since = self._unknown_since or now
        if now - self._unknown_since > _UNKNOWN_LIMIT_S:
            self._transcript.failure = f"accepted, and unknown for {_UNKNOWN_LIMIT_S:g} s since"
        await asyncio.sleep(_RETRY_S)

    def _follow_whim(self, *, has_chunks: bool) -> bool:
        """Cancel if it is time to; True if the client leaves."""
        transcript, order = self._transcript, self._transcript.order
        is_time = transcript.offset >= order.whim_after if has_chunks else order.whim_after < 0
        if order.whim is Whim.NONE or not is_time or transcript.is_over:
            return False
        if order.whim is Whim.LEAVE:
            transcript.has_left = True
            return True
        if self._canceller is None:
            transcript.has_cancelled = True
            self._canceller = asyncio.create_task(self._cancel())
        return False

    async def _cancel(self) -> None:
        """Until it is confirmed, or the caller does not wait for that any more."""
        request = inference_pb2.CancelRequest(request_id=self._transcript.request_id)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self._client.inference.Cancel(request, metadata=self._client.metadata(), timeout=5.0)
                return
            await asyncio.sleep(_RETRY_S)
