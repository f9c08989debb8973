"""uvicorn's websocket protocol, with a bound on what is kept for a client that does not read."""

from __future__ import annotations

from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

# Pongs are written without waiting for the client to read.
_MAX_UNREAD_BYTES = 1 << 20


class BoundedWebSocketProtocol(WSProtocol):
    """One websocket."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            self.transport.abort()
