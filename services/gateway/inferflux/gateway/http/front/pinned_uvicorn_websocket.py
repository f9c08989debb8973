"""uvicorn's websocket protocol, with bounds on what is kept for a client that does not read, and on the work
for one that sends many frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

from .feeding import Feeder, Pace

if TYPE_CHECKING:
    from uvicorn._types import WebSocketEvent

# Pongs are written without waiting for the client to read.
_MAX_UNREAD_BYTES = 1 << 20
# 170 empty frames.
_PIECE_BYTES = 1 << 10
_BAD_HANDSHAKE = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 43\r\nconnection: close\r\n\r\n"
    b"A header of the handshake is not in ASCII.\n"
)


class BoundedWebSocketProtocol(WSProtocol):
    """One websocket."""

    def __init__(self, pace: Pace, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._pace = pace
        self._feeder: Feeder

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._feeder = Feeder(
            self._pace, transport, self._take, piece_bytes=_PIECE_BYTES, waits=lambda: self.read_paused
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._feeder.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._feeder.receive(data)

    async def receive(self) -> WebSocketEvent:
        event = await super().receive()
        self._feeder.go_on()
        return event

    def _take(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except UnicodeDecodeError:  # wsproto reads the handshake's headers as ASCII
            self.transport.write(_BAD_HANDSHAKE)
            self.transport.close()
            return
        if self.transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            self.transport.abort()


def websocket_factory(pace: Pace) -> Callable[..., asyncio.Protocol]:
    """Return the factory that uvicorn makes its websockets' protocols with."""

    def make(**arguments: Any) -> BoundedWebSocketProtocol:
        return BoundedWebSocketProtocol(pace, **arguments)

    return make
