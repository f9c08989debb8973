"""A stream that goes on over another connection when one is lost, each token once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Protocol

import grpc.aio

from inferflux.common.errors import (
    AlreadyExists,
    Cancelled,
    InferFluxError,
    NotFound,
    Unavailable,
    from_failed,
    from_rpc,
)
from inferflux.v1 import tokens_pb2

_RETRY_S = 0.3
# UNAVAILABLE that is the end of the request, not of the connection.
_FINAL = frozenset({"NO_WORKER", "RETRIES_EXHAUSTED", "REFUSED", "SILENT", "TOKENS_LOST"})
# UNAVAILABLE after which the request may run all the same; the first is what gRPC's own errors have.
_UNKNOWN = frozenset({"UNAVAILABLE", "OUTCOME_UNKNOWN", "GATEWAY_DRAINING"})
# What gRPC says when it could not send the request at all.
_NEVER_CONNECTED = ("failed to connect", "DNS resolution")
# Cancels of a request without a chunk yet, which may be on its way to the scheduler.
_EARLY_CANCELS = 4


class Response(Protocol):
    @property
    def chunk(self) -> tokens_pb2.TokenChunk: ...


class Call(Protocol):
    def __aiter__(self) -> AsyncIterator[Response]: ...
    def cancel(self) -> bool: ...


async def read(call: Call) -> AsyncGenerator[tokens_pb2.TokenChunk, None]:
    """The chunks of one call, which is cancelled when the generator is closed early.

    Raises:
        grpc.aio.AioRpcError: the call ended with an error.
        InferFluxError: the generation failed.
    """
    # grpc.aio never cancels an RPC whose call object is merely dropped.
    try:
        async for response in call:
            if response.chunk.HasField("failed"):
                raise from_failed(response.chunk.failed)
            yield response.chunk
    finally:
        call.cancel()


async def read_resuming(
    start: Callable[[], Call],
    resume: Callable[[int], Call],
    cancel: Callable[[], Awaitable[None]],
    *,
    window_s: int,
    on_resumed: Callable[[], None] = lambda: None,
    pause_s: float = _RETRY_S,
) -> AsyncGenerator[tokens_pb2.TokenChunk, None]:
    """The chunks of a request with a resume window, over as many calls as it takes.

    A call that is lost before its first chunk may have been accepted or not. So the request is resumed, and
    sent again under its id only when it is not known.

    Closing the generator early cancels the request: without that it would go on for its window.

    Args:
        start: makes a call that sends the request, always under the same id.
        resume: makes a call that goes on after this many tokens.
        cancel: ends the request; NotFound while it is not known.
        window_s: how long a lost stream is tried for.
        on_resumed: told when a lost stream goes on.
        pause_s: between two calls.

    Raises:
        grpc.aio.AioRpcError: the request was refused, or could not be resumed within its window.
        InferFluxError: the generation failed.
    """
    offset = 0
    has_begun = is_resuming = has_ended = False
    lost_s: float | None = None
    try:
        while True:
            try:
                async for chunk in read(resume(offset) if is_resuming else start()):
                    if lost_s is not None:
                        on_resumed()
                    has_begun, is_resuming, lost_s = True, True, None
                    offset = max(offset, chunk.offset + len(chunk.token_ids))
                    has_ended = chunk.HasField("finished")
                    yield chunk
                has_ended = True
                return
            except InferFluxError:
                has_ended = True
                raise
            except grpc.aio.AioRpcError as failure:
                error, now = from_rpc(failure), time.monotonic()
                was_sent = lost_s is not None or has_begun
                lost_s = now if lost_s is None else lost_s
                may_go_on = _may_pass(error) if was_sent else _may_be_accepted(error)
                if not may_go_on or now - lost_s > window_s:
                    has_ended = True
                    raise
                is_resuming = has_begun or not isinstance(error, NotFound)
            await asyncio.sleep(pause_s)
    finally:
        if not has_ended:
            await _end(cancel, tries=1 if has_begun else _EARLY_CANCELS, pause_s=pause_s)


async def _end(cancel: Callable[[], Awaitable[None]], *, tries: int, pause_s: float) -> None:
    """Cancel a request; again where it may not have come to the scheduler yet."""
    for _ in range(tries):
        try:
            await cancel()
        except NotFound:
            await asyncio.sleep(pause_s)
        except InferFluxError:
            return
        else:
            return


def _may_be_accepted(error: InferFluxError) -> bool:
    """Whether a request may have been accepted whose first call ended with this error, without a chunk.

    What the gateway refuses it gives a reason for. gRPC says by itself that a connection was lost.
    """
    if isinstance(error, Unavailable) and error.message.startswith(_NEVER_CONNECTED):
        return False
    return isinstance(error, Cancelled) or (isinstance(error, Unavailable) and error.reason in _UNKNOWN)


def _may_pass(error: InferFluxError) -> bool:
    """Whether the stream can be taken up again: the connection or the gateway was lost, not the request.

    A gateway that just started may not know the request for a moment. A request that was sent again is taken
    already when it was accepted after all.
    """
    return isinstance(error, AlreadyExists | Cancelled | NotFound) or (
        isinstance(error, Unavailable) and error.reason not in _FINAL
    )
