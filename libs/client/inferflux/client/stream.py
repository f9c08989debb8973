"""A stream of chunks for code that blocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

import grpc

from inferflux.api.errors import InferFluxError, Unavailable, from_rpc
from inferflux.v1 import tokens_pb2

from .following import Following, Step
from .retrying import readable
from .stream_view import Response, StreamView


class Call(Protocol):
    """A call of a streaming RPC."""

    def __next__(self) -> Response: ...
    def cancel(self) -> bool: ...


class _NoCall:
    """Placeholder of a call that was ended."""

    def __next__(self) -> Response:
        raise StopIteration

    def cancel(self) -> bool:
        return False


class Calls(Protocol):
    """Makes the calls of one request, at whichever gateway answers."""

    @property
    def address(self) -> str: ...
    def open(self, step: Step, following: Following) -> Call: ...


class Stream(StreamView):
    """Iterates over the token chunks of a request. A chunk has token ids and their text, an event, or both.

    The request is sent at once. It is cancelled when the stream is closed, left as a context, or
    garbage-collected before its end. A stream that `resume` made only stops reading.

    Iterating raises InferFluxError when the request was refused or failed, or its stream was lost for good.
    """

    _is_closed = True

    def __init__(
        self, calls: Calls, following: Following, *, end: Callable[..., bool], end_later: Callable[..., None]
    ) -> None:
        super().__init__(following)
        self._calls = calls
        self._end = end
        self._end_later = end_later
        self._call: Call = calls.open(following.first, following)
        self._is_closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tokens_pb2.TokenChunk:
        while not self._following.is_over:
            try:
                chunk = self._receive()
                if self._take(chunk):
                    return chunk
            except InferFluxError as error:
                self._recover(error)
        self.close()
        raise StopIteration

    def text(self) -> str:
        """Read to the end; the text of the whole answer.

        Raises:
            InferFluxError: the answer is not whole.
        """
        for _ in self:
            pass
        return "".join(self._texts)

    def close(self) -> None:
        """Cancel the request if it has not ended. Safe to call twice."""
        self._has_ended()

    def _has_ended(self) -> bool:
        """End call and request; False where the request may go on, because it could not be cancelled."""
        return not self._leave() or self._end(self.request_id, is_known=self._following.is_known)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._leave():
            self._end_later(self.request_id, is_known=self._following.is_known)

    def _receive(self) -> tokens_pb2.TokenChunk:
        try:
            return self._chunk_of(next(self._call))
        except StopIteration:
            error: InferFluxError = Unavailable("the stream ended before its last chunk", retry_delay_s=None)
        except grpc.RpcError as failed:
            # The call is its own error: with a traceback it would hold this stream and itself.
            error = from_rpc(failed.with_traceback(None))
        raise error

    def _recover(self, error: InferFluxError) -> None:
        """Make the call that follows one that failed.

        Raises:
            InferFluxError: none does.
        """
        try:
            step = self._following.after(error, time.monotonic())
        except InferFluxError as final:
            said = readable(final, self._calls.address)
            raise (said if self._has_ended() else self._noted(said)) from None
        self._call.cancel()
        time.sleep(step.delay_s)
        self._call = self._calls.open(step, self._following)

    def _leave(self) -> bool:
        """End the call; whether the request would go on without it."""
        if self._is_closed:
            return False
        self._is_closed = True
        must_be_cancelled = self._following.must_be_cancelled
        self._following.end()
        self._call.cancel()
        # One that the ending interpreter collects may wait for ever for a lock of a thread that is gone.
        self._call = _NoCall()
        return must_be_cancelled
