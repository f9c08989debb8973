"""uvicorn's HTTP/1.1 protocol, with bounds on what a connection may send before a request is there.

uvicorn leaves to a proxy what is held here: how long and how large a head may be, how many connections wait,
and that a client which has gone is noticed.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .feeding import Feeder, Pace

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

# Of a request line, a head or a trailer together.
MAX_HEAD_BYTES = 32 << 10
# Connections, and those of them that wait for a head.
MAX_CONNECTIONS = 8192
# Of a body that was refused: the client may read the answer only when it has sent all.
_MOST_LINGERED_BYTES = 256 << 20
# From a connection's first moment, or the first byte after an answer, to the end of the head.
HEAD_LIMIT_S = 10.0
# A silent connection is asked whether it is there after this long, then as often.
_PROBE_AFTER_S = 30
_PROBE_EVERY_S = 10
_PROBES = 3
# A header that asks for another protocol than WebSocket. The parser takes a message with one for all head.
_OTHER_UPGRADE = re.compile(rb"\r\nupgrade(?=[ \t]*:(?![ \t]*websocket\r))", re.IGNORECASE)
# Tiny chunks of it take the parser and uvicorn a millisecond.
_PIECE_BYTES = 8 << 10
_END_OF_HEAD = b"\r\n\r\n"


class HeadTooLargeError(Exception):
    """A head or a trailer has more bytes than are taken."""


class Connections:
    """The connections of a server. One more than it may have closes the one that waits longest for a head."""

    def __init__(self, limit: int = MAX_CONNECTIONS, *, head_limit_s: float = HEAD_LIMIT_S) -> None:
        self.head_limit_s = head_limit_s
        self.pace = Pace()
        self._limit = limit
        self._n = 0
        # Those that wait for a head, the oldest first.
        self._waiting: dict[BoundedHttpProtocol, None] = {}

    def __len__(self) -> int:
        return self._n

    def open(self, connection: BoundedHttpProtocol) -> None:
        self._n += 1
        if self._n > self._limit:
            oldest = next(iter(self._waiting), connection)
            oldest.transport.abort()

    def close(self, connection: BoundedHttpProtocol) -> None:
        self._n -= 1
        self._waiting.pop(connection, None)

    def wait(self, connection: BoundedHttpProtocol) -> None:
        """It waits for a head from now on."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = None

    def work(self, connection: BoundedHttpProtocol) -> None:
        """Its head is complete."""
        self._waiting.pop(connection, None)


class _Flow(FlowControl):
    """Says when a body that was too much for its reader is taken again."""

    def __init__(self, transport: asyncio.Transport, on_resume: Callable[[], None]) -> None:
        super().__init__(transport)
        self._on_resume = on_resume

    def resume_reading(self) -> None:
        super().resume_reading()
        self._on_resume()


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection.

    A second request before the first one's answer is not read: the connection closes after that answer. So
    reading never pauses while a request is served, and a client that leaves is noticed.
    """

    def __init__(self, bounds: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._bounds = bounds
        self._is_open = False
        self._feeder: Feeder
        self._head_timer: asyncio.TimerHandle | None = None
        # Bytes since the parser last gave something away.
        self._held_bytes = 0
        self._head_bytes = 0
        self._is_deaf = False
        self._lingers = False
        self._lingered_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._is_open = True
        self._bounds.open(self)
        self._bounds.wait(self)
        self._start_head_timer()
        self.flow = _Flow(transport, lambda: self._feeder.go_on())
        self._feeder = Feeder(
            self._bounds.pace,
            transport,
            self._take,
            piece_bytes=_PIECE_BYTES,
            waits=lambda: self.flow.read_paused,
        )
        _probe_when_silent(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._feeder.stop()
        if self._is_open:
            self._is_open = False
            self._bounds.close(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._feeder.receive(data)

    def _take(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if not self._is_serving and self._head_timer is None:
            self._start_head_timer()
        self._held_bytes += len(data)
        super().data_received(data if self._is_serving else _without_other_upgrade(data))
        if self._held_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse_head()

    def handle_websocket_upgrade(self) -> None:
        self._stop_head_timer()
        self._feeder.stop()
        if self._is_open:  # the websocket's protocol has the connection from here on
            self._is_open = False
            self._bounds.close(self)
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        if self._is_serving:
            self._is_deaf = True
            self.cycle.keep_alive = False
            return
        self._held_bytes = self._head_bytes = 0
        super().on_message_begin()
        self.scope["inferflux.transport"] = self.transport  # type: ignore[typeddict-unknown-key]

    def on_url(self, url: bytes) -> None:
        if not self._is_deaf:
            self._count(len(url))
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_deaf:
            self._count(len(name) + len(value) + 4)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_deaf:
            return
        self._stop_head_timer()
        self._bounds.work(self)
        super().on_headers_complete()
        if not self._is_serving:  # a websocket's head
            return
        self.cycle.send = _lingering(self.cycle, self._linger)  # type: ignore[method-assign, assignment]
        if self.scope["http_version"] != "1.1":
            self.cycle.send = _close_delimited(self.cycle)  # type: ignore[method-assign, assignment]

    def on_body(self, body: bytes) -> None:
        self._held_bytes = 0
        self._lingered_bytes += len(body) if self._lingers else 0
        if self._lingered_bytes > _MOST_LINGERED_BYTES:
            self.transport.close()
        elif not self._is_deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._held_bytes = 0
        if self._lingers:
            self.transport.close()
        elif not self._is_deaf:
            super().on_message_complete()

    def _linger(self) -> None:
        """Take the rest of the body before the connection closes, for as long as a head may take."""
        self._lingers = True
        self._start_head_timer()

    def on_response_complete(self) -> None:
        if self._is_open:
            self._bounds.wait(self)
        super().on_response_complete()
        self.headers = []

    @property
    def _is_serving(self) -> bool:
        return self.cycle is not None and (self._lingers or not self.cycle.response_complete)

    def _count(self, n_bytes: int) -> None:
        """Raises:
        HeadTooLargeError: httptools ends the parsing with it, and uvicorn answers 400.
        """
        self._held_bytes = 0
        self._head_bytes += n_bytes
        if self._head_bytes > MAX_HEAD_BYTES:
            raise HeadTooLargeError

    def _refuse_head(self) -> None:
        if self._is_serving:  # a body's chunk header or trailer: an answer may be under way
            self.transport.abort()
        else:
            self.send_400_response("The head of the request is too large.")

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._bounds.head_limit_s, self._on_head_late)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_head_late(self) -> None:
        self._head_timer = None
        self.transport.close()


def protocol_factory(bounds: Connections) -> Callable[..., asyncio.Protocol]:
    """Return what uvicorn makes its protocols with."""

    def make(**arguments: Any) -> BoundedHttpProtocol:
        return BoundedHttpProtocol(bounds, **arguments)

    return make


def _lingering(
    cycle: RequestResponseCycle, linger: Callable[[], None]
) -> Callable[[ASGISendEvent], Coroutine[Any, Any, None]]:
    """How an answer is sent that closes the connection before the request's body is there.

    A socket that is closed with bytes unread resets the connection, and the client may lose the answer.
    """
    send = cycle.send

    async def sends(message: ASGISendEvent) -> None:
        is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if is_last and cycle.more_body and not cycle.keep_alive:
            cycle.keep_alive = True
            linger()
        await send(message)

    return sends


def _close_delimited(
    cycle: RequestResponseCycle,
) -> Callable[[ASGISendEvent], Coroutine[Any, Any, None]]:
    """How an answer is sent to a client of HTTP/1.0, which knows no chunks.

    A body whose length is not said ends with the connection. uvicorn would send chunks.
    """
    send, has_length = cycle.send, False

    async def sends(message: ASGISendEvent) -> None:
        nonlocal has_length
        if message["type"] == "http.response.start":
            has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            cycle.chunked_encoding = None if has_length else False
        elif message["type"] == "http.response.body" and not has_length:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return sends


def _without_other_upgrade(data: bytes) -> bytes:
    """The first bytes of a request, its offer to speak another protocol renamed (pure).

    A server may ignore such an offer. Java's own client makes one, of HTTP/2, with every request, and the
    parser loses the body of a request that has one.
    """
    head, end, body = data.partition(_END_OF_HEAD)
    return _OTHER_UPGRADE.sub(b"\r\nx-ignored-upgrade", head) + end + body


def _probe_when_silent(transport: asyncio.Transport) -> None:
    """Have the kernel notice a client whose machine or network is gone."""
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is None:
        return
    options = (
        ("TCP_KEEPIDLE", _PROBE_AFTER_S),
        ("TCP_KEEPINTVL", _PROBE_EVERY_S),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", (_PROBE_AFTER_S + _PROBES * _PROBE_EVERY_S) * 1000),
    )
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options:
            if (option := getattr(socket, name, None)) is not None:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
