"""A websocket that streams the chunks of POST /generate: a request is a message, and so is each chunk."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from inferflux.common.calls.audit.calls import write_call
from inferflux.common.calls.calls import CallContext, CallRecord, call_context, unread_context
from inferflux.common.calls.grpc_metadata import REQUEST_ID
from inferflux.common.contract.callers.places import may_have_more
from inferflux.common.contract.errors import (
    Cancelled,
    InferFluxError,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    Unauthenticated,
    to_http,
)
from inferflux.common.process import logs, metrics
from inferflux.common.process.tasks import off_loop_if_large
from inferflux.gateway.http.errors.errors import in_words_of
from inferflux.gateway.http.front.endpoint import Edge
from inferflux.gateway.http.front.exchange import SEND_LIMIT_S, client_of, to_json
from inferflux.gateway.http.front.json_size import check_json_size
from inferflux.gateway.http.openai import generate
from inferflux.gateway.http.openai.bodies import GenerateBody
from inferflux.gateway.policy.caller import Caller

from .answering import Answering, Asked, of_choice_context
from .reading import BodyReader

log = logs.get()

MAX_MESSAGE_BYTES = 1 << 20
# In audit lines.
_METHOD = "WEBSOCKET /generate"
_MOST_SOCKETS = 1024
_PROTOCOL = "inferflux"
# How a browser says its key: it cannot set a header, but name subprotocols.
_KEY_PREFIX = "bearer."
_CANCEL = b'{"cancel":true}'
# Of RFC 6455: something is against the rules of this server; the server restarts.
_POLICY_VIOLATION, _RESTARTS = 1008, 1012


class Sockets:
    """Places for websockets: a bounded number, shared by tenants."""

    def __init__(self, limit: int = _MOST_SOCKETS) -> None:
        self._limit = limit
        self._by_tenant: Counter[str] = Counter()

    @contextmanager
    def place(self, tenant: str) -> Iterator[None]:
        """Hold a place.

        Raises:
            ResourceExhausted: all are taken, or all that the tenant may have.
        """
        free = self._limit - self._by_tenant.total()
        is_alone = not self._by_tenant.keys() - {tenant}
        held = self._by_tenant[tenant]
        if not free or not may_have_more(held, free=free, size=self._limit, is_alone=is_alone):
            message = f"tenant {tenant} has {held} websockets here already, as many as it may have now"
            raise ResourceExhausted(message, reason="TOO_MANY_WEBSOCKETS")
        self._by_tenant[tenant] += 1
        try:
            yield
        finally:
            self._by_tenant[tenant] -= 1
            if not self._by_tenant[tenant]:
                del self._by_tenant[tenant]


class WebSocketEndpoint:
    """Serves one websocket after another, as an ASGI application."""

    def __init__(self, edge: Edge, answering: Answering, bodies: BodyReader) -> None:
        self._edge = edge
        self._answering = answering
        self._bodies = bodies
        self._sockets = Sockets()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        logs.clear_request()
        socket = _Socket(receive, send)
        context = unread_context(client_of(scope))
        try:
            await receive()  # the handshake
            try:
                read = call_context(_headers(scope), remaining_s=None, record=context.record)
                context = replace(read, method=_METHOD)
                caller = await self._edge.admit("inference", context)
                with self._sockets.place(caller.tenant):
                    await socket.accept(scope, context)
                    await self._serve(socket, context)
            except InferFluxError as error:
                write_call(self._edge.trail, context, _METHOD, error=error)
                await socket.deny(error)
        except asyncio.CancelledError:
            if socket.left_early is not None:  # uvicorn knows its own error, and logs any other end as ours
                raise socket.left_early from None

    async def _serve(self, socket: _Socket, context: CallContext) -> None:
        """Answer requests until the client leaves, each under an id of its own, and each admitted by itself:
        the key may have been revoked meanwhile."""
        number = 0
        while (message := await socket.next()) is not None:
            own = replace(context, record=_record_of(context), started_at=time.monotonic())
            try:
                own = of_choice_context(own, number, first=number)
                caller = await self._edge.admit("inference", replace(own, is_counted=True))
                await self._answer(socket, own, caller, message)
            except InferFluxError as error:
                write_call(self._edge.trail, own, _METHOD, error=error)
                await socket.send(to_http(error).body)
                if isinstance(error, Unauthenticated):
                    await socket.close(_POLICY_VIOLATION)
                    return
                if error.reason == "GATEWAY_DRAINING":
                    await socket.close(_RESTARTS)
                    return
            except asyncio.CancelledError as error:  # the client left before its request was queued
                write_call(self._edge.trail, own, _METHOD, error=error)
                raise
            except Exception as error:
                write_call(self._edge.trail, own, _METHOD, error=error)
                correlation_id = secrets.token_hex(6)
                metrics.UNEXPECTED_ERRORS.labels(where="http").inc()
                log.error("unexpected error in a websocket", correlation_id=correlation_id, exc_info=error)
                said = Internal(f"internal error, correlation id {correlation_id}")
                await socket.send(to_http(said).body)
            number += 1

    async def _answer(self, socket: _Socket, context: CallContext, caller: Caller, message: bytes) -> None:
        await off_loop_if_large(len(message), lambda: check_json_size(message))
        body, prompt = await self._bodies.read(caller, message, GenerateBody, generate.to_request)
        asked = Asked([prompt], 1, partial(generate.field_names, body))
        stream = generate.ChunkStream()
        await socket.send({"request_id": context.request_id})
        try:
            async with (
                socket.cancelled_on_message(),
                aclosing(self._answering.chunks(context, caller, asked)) as chunks,
            ):
                async for index, chunk, _ in chunks:
                    for said in stream.messages(index, chunk):
                        await socket.send(said)
        except InferFluxError as error:
            raise in_words_of(error, asked.field_names()) from None


def _record_of(context: CallContext) -> CallRecord:
    """The context of one request of a websocket: the caller is the handshake's."""
    record = context.record
    return CallRecord(record.tenant, record.key_id, dict(record.about))


class _Socket:
    """One websocket."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._is_accepted = False
        # What told that the client was gone before the handshake was answered.
        self.left_early: OSError | None = None

    async def accept(self, scope: Scope, context: CallContext) -> None:
        chosen = _PROTOCOL if _PROTOCOL in scope.get("subprotocols", []) else None
        headers = [(REQUEST_ID.encode(), context.request_id.encode())]
        await self._put({"type": "websocket.accept", "subprotocol": chosen, "headers": headers})
        self._is_accepted = True

    async def deny(self, error: InferFluxError) -> None:
        """Answer the handshake with an error."""
        if self._is_accepted:
            await self.close(_POLICY_VIOLATION)
            return
        await deny_handshake(self._put, error)

    async def next(self) -> bytes | None:
        """The client's next message; None when it has left."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            return None
        text = message.get("text")
        return message.get("bytes") or b"" if text is None else text.encode()

    async def send(self, message: Mapping[str, Any]) -> None:
        """Raises:
        asyncio.CancelledError: the client is gone, or took nothing for the limit.
        """
        await self._put({"type": "websocket.send", "text": to_json(message).decode()})

    async def close(self, code: int) -> None:
        await self._put({"type": "websocket.close", "code": code})

    def cancelled_on_message(self) -> _Watch:
        """While it is entered, the task is cancelled when the client leaves or sends anything."""
        return _Watch(self)

    async def _put(self, message: Message) -> None:
        try:
            async with asyncio.timeout(SEND_LIMIT_S):
                await self._send(message)
        except (TimeoutError, OSError) as gone:
            if not self._is_accepted:
                self.left_early = gone
            raise asyncio.CancelledError("the client is gone") from None


class _Watch:
    """Listens while a request is answered."""

    def __init__(self, socket: _Socket) -> None:
        self._socket = socket
        self._task: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._was_cancel = False
        self._was_message = False

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        self._watcher = asyncio.create_task(self._listen())

    async def __aexit__(self, kind: type[BaseException] | None, _error: object, _traceback: object) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        if kind is not asyncio.CancelledError or not (self._was_cancel or self._was_message):
            return
        if self._task is not None:
            self._task.uncancel()
        if self._was_cancel:
            raise Cancelled("the request was cancelled")
        message = "a websocket answers one request at a time: send {'cancel': true}, or use another"
        raise InvalidArgument(message, reason="REQUEST_RUNS")

    async def _listen(self) -> None:
        message = await self._socket.next()
        self._was_cancel = message is not None and b"".join(message.split()) == _CANCEL
        self._was_message = message is not None
        if self._task is not None:
            self._task.cancel()


def _headers(scope: Scope) -> list[tuple[str, str]]:
    """The handshake's headers, with a key that came as a subprotocol."""
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    offered = scope.get("subprotocols", [])
    keys = [one.removeprefix(_KEY_PREFIX) for one in offered if one.startswith(_KEY_PREFIX)]
    return pairs + [("authorization", f"Bearer {key}") for key in keys[:1]]


async def deny_handshake(send: Send, error: InferFluxError) -> None:
    """Answer a handshake that was not accepted with an error, as a route would."""
    status, headers, body = to_http(error)
    pairs = [("content-type", "application/json"), *headers.items()]
    start = {
        "type": "websocket.http.response.start",
        "status": status,
        "headers": [(name.encode(), value.encode()) for name, value in pairs],
    }
    await send(start)
    await send({"type": "websocket.http.response.body", "body": to_json(body), "more_body": False})
