"""uvicorn's websocket protocol, with a bound on what is kept for a client that does not read."""

from __future__ import annotations

from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

# Pongs are written without waiting for the client to read.
_MAX_UNREAD_BYTES = 1 << 20
_BAD_HANDSHAKE = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 43\r\nconnection: close\r\n\r\n"
    b"A header of the handshake is not in ASCII.\n"
)


class BoundedWebSocketProtocol(WSProtocol):
    """One websocket."""

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except UnicodeDecodeError:  # wsproto reads the handshake's headers as ASCII
            self.transport.write(_BAD_HANDSHAKE)
            self.transport.close()
            return
        if self.transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            self.transport.abort()
