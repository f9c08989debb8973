"""A stream of chunks for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Protocol, Self

import grpc.aio

from inferflux.api.errors import Cancelled, InferFluxError, Unavailable, from_rpc
from inferflux.v1 import tokens_pb2

from .following import Following, Step
from .retrying import readable
from .stream_view import StreamView


class Call(Protocol):
    """A call of a streaming RPC."""

    def read(self) -> Awaitable[Any]: ...
    def cancel(self) -> bool: ...


class Calls(Protocol):
    """Makes the calls of one request, at whichever gateway answers."""

    @property
    def address(self) -> str: ...
    def open(self, step: Step, following: Following) -> Call: ...


class AsyncStream(StreamView):
    """`Stream` for `async for` and `async with`. A running event loop is needed to make one."""

    _is_closed = True

    def __init__(
        self,
        calls: Calls,
        following: Following,
        *,
        end: Callable[..., Awaitable[bool]],
        end_later: Callable[..., None],
    ) -> None:
        super().__init__(following)
        self._calls = calls
        self._end = end
        self._end_later = end_later
        self._loop = asyncio.get_running_loop()
        self._call = calls.open(following.first, following)
        self._is_closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tokens_pb2.TokenChunk:
        while not self._following.is_over:
            try:
                chunk = await self._receive()
                if self._take(chunk):
                    return chunk
            except InferFluxError as error:
                await self._recover(error)
        await self.close()
        raise StopAsyncIteration

    async def text(self) -> str:
        """Read to the end; the text of the whole answer.

        Raises:
            InferFluxError: the answer is not whole.
        """
        async for _ in self:
            pass
        return "".join(self._texts)

    async def close(self) -> None:
        """Cancel the request if it has not ended. Safe to call twice."""
        await self._has_ended()

    async def _has_ended(self) -> bool:
        """End call and request; False where the request may go on, because it could not be cancelled."""
        return not self._leave() or await self._end(self.request_id, is_known=self._following.is_known)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        # It may be collected in any thread, and when the loop is gone.
        if not self._is_closed:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_drop, self._call, self._following, self._end_later)

    async def _receive(self) -> tokens_pb2.TokenChunk:
        try:
            response = await self._call.read()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # An earlier read was cancelled: gRPC ended the call with it.
            raise Cancelled("the reader stopped waiting") from None
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from None
        if response is grpc.aio.EOF:
            raise Unavailable("the stream ended before its last chunk", retry_delay_s=None)
        return self._chunk_of(response)

    async def _recover(self, error: InferFluxError) -> None:
        """Make the call that follows one that failed.

        Raises:
            InferFluxError: none does.
        """
        try:
            step = self._following.after(error, time.monotonic())
        except InferFluxError as final:
            said = readable(final, self._calls.address)
            raise (said if await self._has_ended() else self._noted(said)) from None
        self._call.cancel()
        await asyncio.sleep(step.delay_s)
        self._call = self._calls.open(step, self._following)

    def _leave(self) -> bool:
        """End the call; whether the request would go on without it."""
        if self._is_closed:
            return False
        self._is_closed = True
        must_be_cancelled = self._following.must_be_cancelled
        self._following.end()
        self._call.cancel()
        return must_be_cancelled


def _drop(call: Call, following: Following, end_later: Callable[..., None]) -> None:
    """End a request whose stream was dropped."""
    call.cancel()
    if following.must_be_cancelled:
        end_later(following.request_id, is_known=following.is_known)
