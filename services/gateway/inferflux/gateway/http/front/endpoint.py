"""Steps around every HTTP call: context, admission, body, errors, its log line and its count."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from starlette.types import Receive, Scope, Send

from inferflux.common.calls.audit.calls import write_call
from inferflux.common.calls.audit.writer import AuditTrail
from inferflux.common.calls.calls import CallContext
from inferflux.common.calls.grpc_receiving import Receiving
from inferflux.common.contract.callers import rate_limits
from inferflux.common.contract.errors import InferFluxError, Internal, InvalidArgument
from inferflux.common.process import logs, metrics
from inferflux.common.tracing import trace_id_of
from inferflux.gateway.metrics import GatewayMetrics
from inferflux.gateway.policy.caller import Caller

from .exchange import Exchange
from .routes import RouteRule

log = logs.get()

# Bodies that arrive at the same time. Tenants share the places: a slow body gives way to another's.
_BODIES, _BODY_GRACE_S, _BODY_LIMIT_S = 16, 2.0, 60.0
_GONE = 499

Admit = Callable[[str, CallContext], Awaitable[Caller]]


class MethodNotAllowed(InvalidArgument):
    """The path is there, for other methods."""

    http_status = 405


@dataclass(frozen=True, slots=True)
class Request:
    """An admitted call with its whole body."""

    exchange: Exchange
    caller: Caller
    body: bytes

    @property
    def request_id(self) -> str:
        return self.exchange.context.request_id


Handler = Callable[[Request], Awaitable[None]]
OpenHandler = Callable[[Exchange], Awaitable[None]]


class Edge:
    """Parts that all endpoints share.

    Args:
        admit: lets the holder of a key pass, by the scope that an endpoint needs.
        trail: gets a line for each call that needs a key.
    """

    def __init__(self, admit: Admit, counts: GatewayMetrics, trail: AuditTrail) -> None:
        self._admit = admit
        self.trail = trail
        self.counts = counts
        self.receiving = Receiving(_BODIES, grace_s=_BODY_GRACE_S, time_limit_s=_BODY_LIMIT_S)

    async def admit(self, scope: str, context: CallContext) -> Caller:
        """Let a call pass, and note for its audit line whose it is.

        Raises:
            InferFluxError: it may not pass.
        """
        self.trail.check()
        context.record.about["protocol"] = "http"
        caller = await self._admit(scope, context)
        context.record.tenant, context.record.key_id = caller.tenant, caller.key_id
        return caller


class Endpoint:
    """One path and method, as an ASGI application. Admission comes before the body is received.

    Args:
        rule: its path, as metrics and logs name it, its method, and the scope that a key needs.
    """

    def __init__(self, edge: Edge, rule: RouteRule, handle: Handler) -> None:
        self._edge = edge
        self._path = rule.path
        self._method = rule.method
        self._rule = rule
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        logs.clear_request()
        error = await guarded(exchange, self._path, self._serve(exchange, scope["method"]))
        write_call(self._edge.trail, exchange.context, f"{scope['method']} {self._path}", error=error)
        status = _GONE if exchange.is_gone else exchange.status
        self._edge.counts.http_requests.labels(self._path, str(status)).inc()
        log.debug("served an HTTP call", path=self._path, status=status, client=exchange.client)

    async def _serve(self, exchange: Exchange, method: str) -> None:
        context = exchange.begin()
        trace_id = trace_id_of(context.traceparent)
        logs.bind_request(**logs.of_request(context.request_id, trace_id=trace_id))
        if method != self._method:
            exchange.headers["allow"] = self._method
            raise MethodNotAllowed(f"use {self._method}", reason="METHOD_NOT_ALLOWED")
        if self._rule.scope is None:
            raise RuntimeError("an endpoint has a scope")
        called = replace(context, is_counted=self._rule.is_counted, method=f"{method} {self._path}")
        caller = await self._edge.admit(self._rule.scope, called)
        exchange.headers.update(rate_limits.headers_of(caller.limits))
        body = b""
        if method == "POST":
            async with self._edge.receiving.place(("tenant", caller.tenant)):
                body = await exchange.body(self._rule.max_body_bytes)
        await self._handle(Request(exchange, caller, body))


class OpenEndpoint:
    """A path that answers strangers: health, documents. It reads no body."""

    def __init__(self, handle: OpenHandler) -> None:
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        await guarded(exchange, scope["path"], self._serve(exchange, scope["method"]))

    async def _serve(self, exchange: Exchange, method: str) -> None:
        exchange.begin()
        if method not in ("GET", "HEAD"):
            exchange.headers["allow"] = "GET"
            raise MethodNotAllowed("use GET", reason="METHOD_NOT_ALLOWED")
        await self._handle(exchange)


async def guarded(exchange: Exchange, path: str, work: Awaitable[None]) -> BaseException | None:
    """Whatever ends the work, the client gets an answer in the shape of its API, or is gone.

    Returns:
        What ended it, if anything did.
    """
    ended_by: BaseException | None = None
    try:
        try:
            await work
        except InferFluxError as error:
            ended_by = error
            log.debug("refused an HTTP call", path=path, reason=error.reason, message=error.message)
            await exchange.fail(error)
        except Exception as error:
            ended_by = error
            correlation_id = secrets.token_hex(6)
            metrics.UNEXPECTED_ERRORS.labels(where="http").inc()
            log.error("unexpected error in an HTTP call", correlation_id=correlation_id, exc_info=error)
            await exchange.fail(Internal(f"internal error, correlation id {correlation_id}"))
    except (
        asyncio.CancelledError
    ) as error:  # the client is gone, or the server ends: the call's task ends here
        await exchange.leave()
        ended_by = ended_by or error
    return ended_by
