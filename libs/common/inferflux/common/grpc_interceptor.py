"""What happens around every RPC: its request id, its errors, its log line, its counter.

Handlers raise InferFluxErrors; the caller gets a google.rpc.Status. Whatever else a handler raises is a
defect of ours: logged with its traceback under a correlation id, which is all the caller is told.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from inferflux.common import grpc_metadata, logs, metrics, wire
from inferflux.common.errors import InferFluxError, Internal, InvalidArgument, to_status

log = logs.get()

Context = grpc.aio.ServicerContext[Any, Any]

_request_id: ContextVar[str] = ContextVar("inferflux_request_id", default="")


def current_request_id() -> str:
    """The request id of the RPC this task serves: the caller's or a generated one; "" outside of any."""
    return _request_id.get()


@dataclass(frozen=True, slots=True)
class _Undecodable:
    """Stands in for a request whose bytes are not one, until there is a context to refuse it with."""

    error: InvalidArgument


class RequestInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handlers of all four kinds of RPC."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler: Any = await continuation(handler_call_details)
        if handler is None:  # UNIMPLEMENTED; its name is the caller's, so it gets no metric
            return None
        method = handler_call_details.method
        decode = _tolerant(handler.request_deserializer)
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(
                _answering(method, handler.unary_unary), decode, handler.response_serializer
            )
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(
                _streaming(method, handler.unary_stream), decode, handler.response_serializer
            )
        if handler.stream_unary:
            return grpc.stream_unary_rpc_method_handler(
                _answering(method, handler.stream_unary), decode, handler.response_serializer
            )
        return grpc.stream_stream_rpc_method_handler(
            _streaming(method, handler.stream_stream), decode, handler.response_serializer
        )


def _answering(method: str, inner: Callable[[Any, Context], Awaitable[Any]]) -> Any:
    async def handle(request: Any, context: Context) -> Any:
        async with _Call(method, context):
            return await inner(_checked(request), context)

    return handle


def _streaming(method: str, inner: Callable[[Any, Context], Any]) -> Any:
    # A coroutine that writes, not a generator: a cancelled RPC then raises CancelledError inside this
    # frame, and the handler's generator is closed at once instead of when it is garbage-collected.
    async def handle(request: Any, context: Context) -> None:
        async with _Call(method, context):
            responses = inner(_checked(request), context)
            if not hasattr(responses, "__aiter__"):
                await responses  # a handler that writes for itself
                return
            async with aclosing(responses):
                async for response in responses:
                    await context.write(response)

    return handle


class _Call:
    """One RPC from the first byte to its status. Cancellation always passes through."""

    def __init__(self, method: str, context: Context) -> None:
        self._method = method
        self._context = context

    async def __aenter__(self) -> None:
        context = self._context
        logs.clear_request()
        try:
            request_id = grpc_metadata.request_id(context.invocation_metadata())
        except InvalidArgument as error:
            await self._abort(error)
        _request_id.set(request_id)
        logs.bind_request(request_id=request_id)
        await context.send_initial_metadata(((grpc_metadata.REQUEST_ID, request_id),))

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None:
            self._end("OK")
        elif isinstance(error, InferFluxError):
            await self._abort(error)
        elif isinstance(error, grpc.aio.AbortError):
            self._end(str(self._context.code()))  # the handler chose its own status
        elif isinstance(error, grpc.aio.BaseError) or not isinstance(error, Exception):
            self._end("CANCELLED")  # the caller is gone, or the server is stopping
        else:
            await self._abort_unexpected(error)

    async def _abort_unexpected(self, error: Exception) -> NoReturn:
        correlation_id = secrets.token_hex(6)
        metrics.UNEXPECTED_ERRORS.labels(where="grpc").inc()
        log.error(
            "unexpected error in an RPC", rpc=self._method, correlation_id=correlation_id, exc_info=error
        )
        await self._abort(Internal(f"internal error, correlation id {correlation_id}"))

    async def _abort(self, error: InferFluxError) -> NoReturn:
        status = to_status(error)
        code = _CODE_NAMES.get(error.code, "UNKNOWN")
        self._end(code)
        if code != "INTERNAL":
            log.debug(
                "refused an RPC", rpc=self._method, code=code, reason=error.reason, message=error.message
            )
        await self._context.abort_with_status(rpc_status.to_status(status))
        raise AssertionError("abort_with_status returned")

    def _end(self, code: str) -> None:
        metrics.RPCS.labels(method=self._method, code=code.removeprefix("StatusCode.")).inc()
        log.debug("served an RPC", rpc=self._method, code=code)


_CODE_NAMES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}


def _checked(request: Any) -> Any:
    if isinstance(request, _Undecodable):
        raise request.error
    if hasattr(request, "__aiter__"):
        return _checked_stream(request)
    return request


async def _checked_stream(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _checked(request)


def _tolerant(decode: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """A deserializer that hands the problem on instead of ending the RPC with UNKNOWN."""
    if decode is None:
        return None
    message_type = getattr(decode, "__self__", None)

    def tolerant(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError as error:
            descriptor = getattr(message_type, "DESCRIPTOR", None)
            return _Undecodable(wire.explain(data, descriptor, str(error)))

    return tolerant
