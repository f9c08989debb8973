"""A stream that goes on over another connection when one is lost, each token once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import grpc.aio

from inferflux.common.errors import Cancelled, InferFluxError, NotFound, Unavailable, from_failed, from_rpc
from inferflux.v1 import tokens_pb2

_RETRY_S = 0.3
# UNAVAILABLE that is the end of the request, not of the connection.
_FINAL = frozenset({"NO_WORKER", "RETRIES_EXHAUSTED", "REFUSED", "SILENT", "TOKENS_LOST"})


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
) -> AsyncGenerator[tokens_pb2.TokenChunk, None]:
    """The chunks of a request with a resume window, over as many calls as it takes.

    Closing the generator early cancels the request: without that it would go on for its window.

    Args:
        start: makes the first call.
        resume: makes a call that goes on after so many tokens.
        cancel: ends the request.
        window_s: how long a lost stream is tried for.

    Raises:
        grpc.aio.AioRpcError: the request was refused, or could not be resumed within its window.
        InferFluxError: the generation failed.
    """
    offset = 0
    is_accepted = has_ended = False
    lost_s: float | None = None
    try:
        while True:
            try:
                async for chunk in read(resume(offset) if is_accepted else start()):
                    is_accepted, lost_s = True, None
                    offset = max(offset, chunk.offset + len(chunk.token_ids))
                    has_ended = chunk.HasField("finished")
                    yield chunk
                has_ended = True
                return
            except InferFluxError:
                has_ended = True
                raise
            except grpc.aio.AioRpcError as error:
                now = time.monotonic()
                lost_s = now if lost_s is None else lost_s
                if not is_accepted or now - lost_s > window_s or not _may_pass(from_rpc(error)):
                    has_ended = True
                    raise
            await asyncio.sleep(_RETRY_S)
    finally:
        if is_accepted and not has_ended:
            with suppress(InferFluxError):
                await cancel()


def _may_pass(error: InferFluxError) -> bool:
    """Whether the stream can be taken up again: the connection or the gateway was lost, not the request.

    A gateway that just started may not know the request for a moment.
    """
    return isinstance(error, Cancelled | NotFound) or (
        isinstance(error, Unavailable) and error.reason not in _FINAL
    )
