"""Interceptor of every RPC: its request id, its admission, its body, its errors, its log line.

The order protects the process from strangers: metadata is checked, the caller is admitted, and only then is
the body received, measured and decoded. grpc.aio would decode before a handler runs, so it sees every method
as one that streams bytes, and the interceptor reads them itself.

Handlers raise InferFluxErrors; the caller gets a google.rpc.Status. Whatever else a handler raises is a
defect of ours: logged with its traceback under a correlation id, which is all the caller is told.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, Protocol, Self, TypeVar

import grpc
import grpc.aio
from grpc_status import rpc_status

from inferflux.common.contract.address import host_of_peer
from inferflux.common.contract.errors import (
    InferFluxError,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    to_status,
)
from inferflux.common.process import logs, metrics
from inferflux.common.tracing import trace_id_of

from . import grpc_metadata, wire
from .audit.calls import write_call
from .audit.writer import NO_AUDIT, AuditTrail
from .calls import CallContext, call_context, unread_context
from .grpc_options import MAX_RECEIVE_BYTES
from .grpc_receiving import Receiving
from .grpc_rules import OPEN_RULES, MethodRule
from .grpc_tls import certificate_name
from .service_key import SERVICE

log = logs.get()

_Caller = TypeVar("_Caller")

Context = grpc.aio.ServicerContext[Any, Any]

_Reply = Callable[[Any, Context], Awaitable[Any]]


class Admitted(Protocol):
    """Admitted caller: the key of a tenant, or a service, which has none."""

    @property
    def tenant(self) -> str: ...
    @property
    def key_id(self) -> str: ...


Admit = Callable[[str, CallContext], Awaitable[Admitted]]
"""Lets the holder of a key pass, or raises: called with the scope and the call's context, before the body is
received. What it returns is the call's `caller`."""

# Messages that arrive at the same time: of strangers to open methods, and of callers that were admitted. Each
# may hold as much memory as gRPC's largest message. Tenants, and strangers' connections, share the places.
_OPEN_MESSAGES, _OPEN_GRACE_S, _OPEN_TIME_LIMIT_S = 2, 0.01, 10.0
_ADMITTED_MESSAGES, _ADMITTED_GRACE_S, _ADMITTED_TIME_LIMIT_S = 64, 2.0, 60.0
# A busy event loop takes as long to read a body that is there.
_ADMITTED_HOLD_S = 0.25

# Calls of each open method: of health's Watch, as the others end at once. One more ends the oldest: strangers
# could hold them all.
_OPEN_CALLS = 256

_ANY = MethodRule(max_body_bytes=MAX_RECEIVE_BYTES)


@dataclass(frozen=True, slots=True)
class CallInfo:
    """The RPC that a task serves.

    Attributes:
        caller: as admitted; None for methods that admit every caller.
    """

    context: CallContext
    caller: Admitted | None


_call: ContextVar[CallInfo | None] = ContextVar("inferflux_call", default=None)


def current_call() -> CallInfo:
    """The RPC that this task serves.

    Raises:
        RuntimeError: it serves none.
    """
    call = _call.get()
    if call is None:
        raise RuntimeError("no RPC is being served")
    return call


@contextmanager
def serving(call: CallInfo) -> Iterator[None]:
    """Have this task serve an RPC that came by another protocol than gRPC."""
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


def caller_as(kind: type[_Caller]) -> _Caller:
    """Caller of the RPC that this task serves, as its admission knows it.

    Raises:
        TypeError: the call was not admitted.
    """
    caller = current_call().caller
    if not isinstance(caller, kind):
        raise TypeError("the caller of this method was not admitted")
    return caller


def note_for_audit(**about: object) -> None:
    """Add fields to the audit line of the RPC that this task serves."""
    current_call().context.record.about |= about


def note_change(**about: object) -> None:
    """Have the audit line of the RPC that this task serves say that it is a change, with these fields."""
    record = current_call().context.record
    record.is_change = True
    record.about |= about


class RequestInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handlers of all four kinds of RPC.

    Args:
        rules: of the server's methods; one that has none is UNIMPLEMENTED. None: every caller may call every
            method, with messages of any size that gRPC takes.
        admit: admits the callers of methods whose rule has a scope.
        trail: gets a line for each call of a method whose rule has a scope.
        max_calls: calls at the same time; health has bounds of its own. One more ends one that waits to send
            its body, of the tenant with most of those. If none waits, it is refused.
    """

    def __init__(
        self,
        rules: Mapping[str, MethodRule] | None = None,
        admit: Admit | None = None,
        trail: AuditTrail = NO_AUDIT,
        *,
        max_calls: int = 8192,
    ) -> None:
        self._rules = rules
        self._admit = admit
        self._trail = trail
        self._max_calls = max_calls
        self._n_calls = 0
        # The calls of open methods: what ends them, the oldest first.
        self._open_calls: dict[str, dict[asyncio.Timeout, None]] = defaultdict(dict)
        self._open = Receiving(_OPEN_MESSAGES, grace_s=_OPEN_GRACE_S, time_limit_s=_OPEN_TIME_LIMIT_S)
        self._admitted = Receiving(
            _ADMITTED_MESSAGES,
            grace_s=_ADMITTED_GRACE_S,
            time_limit_s=_ADMITTED_TIME_LIMIT_S,
            hold_s=_ADMITTED_HOLD_S,
        )

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        rule = self._rule(method)
        if handler is None or rule is None:  # UNIMPLEMENTED; its name is the caller's, so it gets no metric
            return None
        if handler.response_streaming:
            handle = self._handler(handler_call_details, rule, handler, _write_all)
            return grpc.stream_stream_rpc_method_handler(handle, None, handler.response_serializer)
        handle = self._handler(handler_call_details, rule, handler, _answer)
        return grpc.stream_unary_rpc_method_handler(handle, None, handler.response_serializer)

    def _rule(self, method: str) -> MethodRule | None:
        if (rule := OPEN_RULES.get(method)) is not None:
            return rule
        return _ANY if self._rules is None else self._rules.get(method)

    def _handler(
        self, details: grpc.HandlerCallDetails, rule: MethodRule, handler: Any, reply: _Reply
    ) -> Callable[[object, Context], Awaitable[Any]]:
        inner = handler.unary_unary or handler.stream_unary or handler.unary_stream or handler.stream_stream

        # Always a coroutine, never a generator: a cancelled RPC then raises CancelledError inside
        # this frame, and the method's generator is closed at once instead of when it is garbage-collected.
        async def handle(_: object, context: Context) -> Any:
            trail = self._trail if rule.scope else NO_AUDIT
            called = _Call(details.method, details.invocation_metadata, context, trail)
            async with called as call, self._bounded(details.method, rule):
                await self._admit_call(call, rule)
                return await reply(inner(await self._request(context, rule, handler), context), context)

        return handle

    async def _admit_call(self, call: _Call, rule: MethodRule) -> None:
        """Admit the caller, by the call's metadata alone."""
        caller: Admitted | None = None
        if rule.scope:
            if self._admit is None:
                raise RuntimeError("a method has a scope, and nothing admits callers")
            called = replace(
                current_call().context, is_counted=rule.is_counted, method=short_name(call.method)
            )
            # What services call is not audited, but where it is refused.
            is_service = rule.scope == SERVICE
            if not is_service:
                self._trail.check()
            caller = await self._admit(rule.scope, called)
            called.record.is_written = is_service
            called.record.tenant, called.record.key_id = caller.tenant, caller.key_id
        await call.begin(caller, is_told=rule.scope != SERVICE)

    async def _request(self, context: Context, rule: MethodRule, handler: Any) -> Any:
        """Handler's argument: its message, or an iterator over its messages."""
        receiving = self._open if rule.is_open else self._admitted
        if handler.request_streaming:
            return _messages(context, receiving, rule, handler.request_deserializer)
        message = await _receive(context, receiving, rule, handler.request_deserializer)
        if message is grpc.aio.EOF:
            raise InvalidArgument("the call ended without a request", reason="NO_REQUEST")
        return message

    def _bounded(self, method: str, rule: MethodRule) -> AbstractAsyncContextManager[None]:
        """Count a call while it runs: open methods each by itself, so that they cannot crowd out others.

        Raises:
            ResourceExhausted: there are as many as there may be, or this one gave way to a newer one.
        """
        return self._bounded_open(method) if rule.is_open else self._bounded_admitted()

    @asynccontextmanager
    async def _bounded_admitted(self) -> AsyncIterator[None]:
        if self._n_calls >= self._max_calls and not self._admitted.shed():
            message = f"{self._n_calls} calls are being served, and no more"
            raise ResourceExhausted(message, reason="TOO_MANY_CALLS")
        self._n_calls += 1
        try:
            yield
        finally:
            self._n_calls -= 1

    @asynccontextmanager
    async def _bounded_open(self, method: str) -> AsyncIterator[None]:
        calls = self._open_calls[method]
        if len(calls) >= _OPEN_CALLS:
            oldest = next(iter(calls))
            del calls[oldest]
            oldest.reschedule(asyncio.get_running_loop().time())
        timeout = asyncio.timeout(None)
        try:
            async with timeout:
                calls[timeout] = None
                yield
        except TimeoutError:
            if not timeout.expired():
                raise
            message = f"{_OPEN_CALLS} newer calls of this method are being served, and no more"
            raise ResourceExhausted(message, reason="TOO_MANY_CALLS") from None
        finally:
            calls.pop(timeout, None)


async def _answer(response: Any, _context: Context) -> Any:
    return await response


async def _write_all(responses: Any, context: Context) -> None:
    if not hasattr(responses, "__aiter__"):
        await responses  # a method that writes for itself
        return
    async with aclosing(responses):
        async for response in responses:
            await context.write(response)


def _owner(context: Context) -> tuple[str, str]:
    """Owner of a call's place: its tenant's calls, or those of a connection without a tenant."""
    caller = current_call().caller
    if caller is not None and caller.tenant:
        return ("tenant", caller.tenant)
    return ("connection", context.peer())


async def _receive(
    context: Context, receiving: Receiving, rule: MethodRule, parse: Callable[[bytes], Any] | None
) -> Any:
    """The call's next message, or EOF: received in a place, measured and decoded."""
    async with receiving.place(_owner(context)):
        data: Any = await context.read()
    if data is grpc.aio.EOF:
        return data
    decode = partial(wire.decode, data, parse, rule.max_body_bytes, rule.max_fields)
    is_slow = rule.max_fields > wire.MAX_FIELDS and len(data) > wire.SMALL_BYTES
    return await asyncio.to_thread(decode) if is_slow else decode()


async def _messages(
    context: Context, receiving: Receiving, rule: MethodRule, parse: Callable[[bytes], Any] | None
) -> AsyncIterator[Any]:
    while (message := await _receive(context, receiving, rule, parse)) is not grpc.aio.EOF:
        yield message


class _Call:
    """One RPC from the first byte to its status. Cancellation always passes through."""

    def __init__(
        self, method: str, metadata: grpc_metadata.Metadata | None, context: Context, trail: AuditTrail
    ) -> None:
        self.method = method
        self._context = context
        self._metadata = metadata
        self._trail = trail
        self._called = unread_context(host_of_peer(context.peer()))

    async def __aenter__(self) -> Self:
        logs.clear_request()
        try:
            context = call_context(
                self._metadata,
                remaining_s=self._context.time_remaining(),
                certificate=certificate_name(self._context.auth_context()),
                record=self._called.record,
            )
        except InvalidArgument as error:
            await self._abort(error)
        self._called = context
        _call.set(CallInfo(context, None))
        trace_id = trace_id_of(context.traceparent)
        logs.bind_request(**logs.of_request(context.request_id, trace_id=trace_id))
        return self

    async def begin(self, caller: Admitted | None, *, is_told: bool) -> None:
        """The caller may call: tell it the request id before its first message.

        Args:
            is_told: not where a service calls, which gave the id: it is a fifth of what a short call costs.
        """
        _call.set(CallInfo(current_call().context, caller))
        if is_told:
            await self._context.send_initial_metadata(((grpc_metadata.REQUEST_ID, self._called.request_id),))

    async def __aexit__(self, _kind: object, error: BaseException | None, traceback: object) -> None:
        del traceback  # see `_forget_frames`
        if error is None:
            self._end("OK")
        elif isinstance(error, InferFluxError):
            await self._abort(error)
        elif isinstance(error, grpc.aio.AbortError):
            self._end(str(self._context.code()), error)  # the handler chose its own status
        elif isinstance(error, grpc.aio.BaseError) or not isinstance(error, Exception):
            self._end("CANCELLED", asyncio.CancelledError())  # the caller is gone, or the server is stopping
            if isinstance(error, grpc.aio.BaseError):
                raise _gone() from error
        else:
            await self._abort_unexpected(error)

    async def _abort_unexpected(self, error: Exception) -> NoReturn:
        await self._abort(unexpected(error, self.method))

    async def _abort(self, error: InferFluxError) -> NoReturn:
        status: Any = rpc_status.to_status(to_status(error))
        code = _CODE_NAMES.get(error.code, "UNKNOWN")
        self._end(code, error)
        if code != "INTERNAL":
            log.debug(
                "refused an RPC", rpc=self.method, code=code, reason=error.reason, message=error.in_full
            )
        if self._called.request_id:
            mine = ((grpc_metadata.REQUEST_ID, self._called.request_id), *error.headers.items())
            status = status._replace(trailing_metadata=(*status.trailing_metadata, *mine))
        _forget_frames(sys.exc_info()[1])
        try:
            await self._context.abort_with_status(status)
        except grpc.aio.AbortError:
            raise
        except grpc.aio.BaseError as gone:
            raise _gone() from gone
        raise AssertionError("abort_with_status returned")

    def _end(self, code: str, error: BaseException | None = None) -> None:
        write_call(self._trail, self._called, self.method.rpartition("/")[2], error=error)
        metrics.RPCS.labels(method=self.method, code=code.removeprefix("StatusCode.")).inc()
        log.debug("served an RPC", rpc=self.method, code=code)


def _forget_frames(error: BaseException | None) -> None:
    """An error that ends a call is kept by what gRPC raises for it, and that by the call, which it refers to.
    With its frames, which have the request, all of it would be there until the garbage collector comes.
    """
    if error is not None:
        error.__traceback__ = error.__context__ = error.__cause__ = None


def unexpected(error: Exception, method: str) -> Internal:
    """Log and count a defect of ours; what its caller is told."""
    correlation_id = secrets.token_hex(6)
    metrics.UNEXPECTED_ERRORS.labels(where="grpc").inc()
    log.error("unexpected error in an RPC", rpc=method, correlation_id=correlation_id, exc_info=error)
    return Internal(f"internal error, correlation id {correlation_id}")


def short_name(method: str) -> str:
    """`InferenceService/Chat` of `/inferflux.v1.InferenceService/Chat`."""
    service, _, name = method.rpartition("/")
    return f"{service.rpartition('.')[2]}/{name}"


def _gone() -> asyncio.CancelledError:
    """Error that ends an RPC whose caller has left: grpc logs its own errors with a traceback."""
    return asyncio.CancelledError("the caller is gone")


_CODE_NAMES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}
