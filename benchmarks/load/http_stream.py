"""Reading server-sent events off an HTTP/1.1 connection, with little work per event. No I/O."""

from __future__ import annotations


class ProtocolError(Exception):
    """The peer does not speak HTTP/1.1 as it should."""


class ResponseParser:
    """One response, its body chunked, of known length, or ended by the connection's end.

    Attributes:
        status: the status code; 0 until the head has arrived.
        is_complete: whether the whole body was seen.
        keeps_alive: whether the connection may carry another request.
    """

    def __init__(self) -> None:
        self.status = 0
        self.is_complete = False
        self.keeps_alive = True
        self._buffer = b""
        self._is_chunked = False
        self._left: int | None = None
        self._in_chunk = 0

    def feed(self, data: bytes) -> bytes:
        """Take in what arrived; returns the part of the body in it.

        Raises:
            ProtocolError: this is not HTTP/1.1.
        """
        self._buffer += data
        if not self.status and not self._read_head():
            return b""
        return self._read_chunks() if self._is_chunked else self._read_rest()

    def end(self) -> None:
        """The connection has ended."""
        self.keeps_alive = False
        if self.status and not self._is_chunked and self._left is None:
            self.is_complete = True

    def _read_head(self) -> bool:
        head, blank, rest = self._buffer.partition(b"\r\n\r\n")
        if not blank:
            return False
        first, *lines = head.split(b"\r\n")
        words = first.split(b" ", 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise ProtocolError(f"not an HTTP/1.1 answer: {first[:80]!r}")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (x.partition(b":") for x in lines)
        }
        self.status = int(words[1])
        self._is_chunked = headers.get(b"transfer-encoding", b"").lower() == b"chunked"
        if b"content-length" in headers:
            self._left = int(headers[b"content-length"])
            self.is_complete = self._left == 0
        self.keeps_alive = headers.get(b"connection", b"").lower() != b"close"
        self._buffer = rest
        return True

    def _read_rest(self) -> bytes:
        body, self._buffer = self._buffer, b""
        if self._left is not None:
            self._left -= len(body)
            self.is_complete = self._left <= 0
        return body

    def _read_chunks(self) -> bytes:
        """Decode all whole chunks; part of one waits in the buffer."""
        buffer = self._buffer
        parts: list[bytes] = []
        at = 0
        while (line_end := buffer.find(b"\r\n", at)) >= 0:
            try:
                size = int(buffer[at:line_end].partition(b";")[0], 16)
            except ValueError:
                raise ProtocolError(f"not a chunk size: {buffer[at:line_end][:40]!r}") from None
            data_at = line_end + 2
            if len(buffer) < data_at + size + 2:
                break
            at = data_at + size + 2
            if size == 0:
                self.is_complete = True
                break
            parts.append(buffer[data_at : data_at + size])
        self._buffer = buffer[at:]
        return parts[0] if len(parts) == 1 else b"".join(parts)


class EventParser:
    """Server-sent events out of a body: the value of each event's `data` line."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, body: bytes) -> list[bytes]:
        """The events that are whole now."""
        if self._buffer:
            body = self._buffer + body
        *whole, self._buffer = body.replace(b"\r\n", b"\n").split(b"\n\n")
        return [event[5:].lstrip() for event in whole if event.startswith(b"data:")]
