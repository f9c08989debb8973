"""One HTTP call as its handlers see it: context, body, answer, and the client that may leave meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from pydantic_core import to_json as _encode
from starlette.types import Receive, Scope, Send

from inferflux.common.calls.calls import CallContext, call_context, unread_context
from inferflux.common.calls.grpc_metadata import PRIORITY, REQUEST_ID
from inferflux.common.contract.errors import HttpError, InferFluxError
from inferflux.gateway.http.errors.errors import BodyTooLarge
from inferflux.gateway.http.errors.shapes import shape_of

from .json_size import COUNTED_FROM_BYTES, JsonSize
from .unpacking import unpacker

# A client that takes nothing for this long is cut off: its stream is cancelled. A stall that TCP
# repairs is over by then.
SEND_LIMIT_S = 30.0

Idle = Callable[[], Awaitable[None]]


def to_json(value: object) -> bytes:
    """Compact JSON in UTF-8."""
    return _encode(value)


def client_of(scope: Scope) -> str:
    """The client's address, as the connection or a trusted proxy says it; "" where there is none."""
    client: tuple[str, int] | None = scope.get("client")
    return client[0] if client else ""


class Exchange:
    """A call and its answer.

    Attributes:
        client: the client's address; "" where it has none.
        context: set by `begin`.
        given: the headers that came, with lower-case names.
        headers: sent with the answer's status, whatever that is.
        failure: the last bytes of a stream that fails.
        is_started: whether the status has been sent.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.path_params: Mapping[str, Any] = scope.get("path_params", {})
        self.headers: dict[str, str] = {}
        self.is_started = False
        self.is_ended = False
        self.status = 0
        self.failure: Callable[[InferFluxError], bytes] = lambda _: b""
        self.given = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        self._shape = shape_of(scope.get("path", ""), self.given)
        self._transport: asyncio.Transport | None = scope.get("inferflux.transport")
        self.client = client_of(scope)
        self.owner = ("connection", str(scope.get("client")))
        """A stranger, by its address."""
        self._receive = receive
        self._send = send
        self._is_sending = False
        self._is_gone = False
        self._is_watching = False
        self.context = unread_context(self.client)

    def begin(self) -> CallContext:
        """Read what came beside the body.

        Raises:
            InvalidArgument: the request id cannot be used.
        """
        self.context = call_context(self.given, remaining_s=None, record=self.context.record)
        self.headers[REQUEST_ID] = self.context.request_id
        return self.context

    async def body(self, limit_bytes: int, *, is_json: bool = True) -> bytes:
        """The whole body, unpacked.

        Raises:
            BodyTooLarge: it has more bytes than `limit_bytes`, or is JSON that is too much work to parse.
            UnknownEncoding: it is packed in another way than gzip's or deflate's.
            InvalidArgument: it is not packed as it says, or not whole.
            asyncio.CancelledError: the client left.
        """
        self._check_size(self._declared_bytes(), limit_bytes)
        unpack = unpacker(self.header("content-encoding"))
        body = bytearray()
        size, n_counted = JsonSize(), 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._is_gone = True
                raise asyncio.CancelledError("the client left")
            is_last = not message.get("more_body", False)
            body += unpack(message.get("body", b""), room=limit_bytes + 1 - len(body), is_last=is_last)
            self._check_size(len(body), limit_bytes)
            if is_json and len(body) > COUNTED_FROM_BYTES:
                self._count(size, body[n_counted:])
                n_counted = len(body)
            if is_last:
                return bytes(body)

    def header(self, name: str) -> str:
        """A header of the call, "" without one."""
        return next((value for given, value in self.given if given == name), "")

    def _declared_bytes(self) -> int:
        given = self.header("content-length")
        return int(given) if given.isdigit() else 0

    def _count(self, size: JsonSize, piece: bytearray) -> None:
        try:
            size.feed(bytes(piece))
        except BodyTooLarge:
            self.headers["connection"] = "close"
            raise

    def _check_size(self, size: int, limit_bytes: int) -> None:
        if size > limit_bytes:
            self.headers["connection"] = "close"
            message = f"the body has more than {limit_bytes} bytes"
            raise BodyTooLarge(message, reason="BODY_TOO_LARGE")

    def note_priority(self, given: int, *, asked: int) -> None:
        """Tell the client which priority a request got that asked for too much."""
        if given != asked:
            self.headers[PRIORITY] = str(given)

    @asynccontextmanager
    async def cancelled_when_gone(
        self, *, idle_s: float | None = None, on_idle: Idle | None = None
    ) -> AsyncIterator[None]:
        """Cancel the task that serves the call when the client leaves.

        Args:
            on_idle: called after every `idle_s` seconds, as long as the client is there.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call is served by a task")
        self._is_watching = True
        watcher = asyncio.create_task(self._watch(task, idle_s, on_idle))
        try:
            yield
        finally:
            self._is_watching = False
            watcher.cancel()

    async def _watch(self, task: asyncio.Task[Any], idle_s: float | None, on_idle: Idle | None) -> None:
        while True:
            try:
                async with asyncio.timeout(idle_s):
                    message = await self._receive()
            except TimeoutError:
                if on_idle is not None and not self._is_sending and not await self._could(on_idle):
                    break
                continue
            if message["type"] == "http.disconnect":
                break
        if self._is_watching and not self.is_ended:
            self._is_gone = True
            task.cancel()

    async def _could(self, on_idle: Idle) -> bool:
        """Return whether the client took what was sent."""
        try:
            await on_idle()
        except asyncio.CancelledError:
            if not (self._is_watching and self._is_gone):
                raise
            return False
        return True

    @property
    def is_gone(self) -> bool:
        """Return whether the client left, or was cut off."""
        return self._is_gone

    async def leave(self) -> None:
        """Close the connection of a client that is gone, without waiting for what it did not take."""
        if self._transport is None:
            return
        self._transport.abort()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the status and the headers."""
        self.is_started = True
        self.status = status
        pairs = [
            (k.encode("latin-1"), v.encode("latin-1")) for k, v in (*self.headers.items(), *headers.items())
        ]
        await self._put({"type": "http.response.start", "status": status, "headers": pairs})

    async def write(self, body: bytes, *, is_last: bool = False) -> None:
        """Send a part of the body.

        Raises:
            asyncio.CancelledError: the client took nothing for the limit; it is cut off.
        """
        self.is_ended = self.is_ended or is_last
        await self._put({"type": "http.response.body", "body": body, "more_body": not is_last})

    async def answer(self, status: int, content: bytes, content_type: str, **headers: str) -> None:
        """The whole answer at once."""
        own = {"content-type": content_type, "content-length": str(len(content)), **headers}
        await self.start(status, own)
        await self.write(content, is_last=True)

    async def answer_json(self, value: object, status: int = 200) -> None:
        await self.answer(status, to_json(value), "application/json")

    async def fail(self, error: InferFluxError) -> None:
        """End with an error: by its status, if that has not been sent."""
        if not self.is_started:
            await self.refuse(error)
        else:
            await self.write(self.failure(error), is_last=True)

    def told(self, error: InferFluxError) -> HttpError:
        """An error in the shape of the API that the client speaks."""
        return self._shape(error, self.context.request_id)

    async def refuse(self, error: InferFluxError) -> None:
        """Answer with an error."""
        status, headers, body = self.told(error)
        self.headers.update(headers)
        await self.answer_json(body, status)

    async def _put(self, message: dict[str, Any]) -> None:
        if self._transport is not None and not self._transport.get_write_buffer_size():
            await self._send(message)  # the client has taken all, so this waits for nothing
            return
        self._is_sending = True
        try:
            async with asyncio.timeout(SEND_LIMIT_S):
                await self._send(message)
        except TimeoutError:
            self._is_gone = True
            raise asyncio.CancelledError("the client takes nothing") from None
        finally:
            self._is_sending = False
