"""A client that speaks HTTP/2 frame by frame, for what no gRPC client would send."""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from collections.abc import Iterable

from benchmarks.load import http2
from benchmarks.load.http2 import FrameType

_WAIT_S = 20.0
_INITIAL_WINDOW = 0x4


class Http2Client:
    """One connection. Header text may hold any bytes, as surrogates: "\\udcff" is 0xff."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._next_stream = 1
        self._headers: dict[int, dict[str, str]] = defaultdict(dict)
        self._ends: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self._settings = asyncio.Event()
        self.initial_window = 65_535
        writer.write(http2.opening())
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, port: int) -> Http2Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def open(
        self,
        path: str,
        headers: Iterable[tuple[str, str]] = (),
        *,
        message: bytes | None = None,
        end: bool = False,
    ) -> int:
        """Start a call, with a message or none yet; `end` says that nothing follows."""
        stream = self._next_stream
        self._next_stream += 2
        block = http2.encode_headers(
            (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                (":authority", "test"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                *headers,
            )
        )
        flags = http2.END_HEADERS | (http2.END_STREAM if end and message is None else 0)
        self._writer.write(http2.frame(FrameType.HEADERS, flags, stream, block))
        if message is not None:
            self.send(stream, b"\0" + struct.pack(">I", len(message)) + message, end=end)
        return stream

    def send(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """Send bytes of a call's body, in one frame."""
        self._writer.write(http2.frame(FrameType.DATA, http2.END_STREAM if end else 0, stream, data))

    async def ended(self, stream: int) -> dict[str, str]:
        """The trailers of a call, once it has ended; empty when it was reset without any."""
        await asyncio.wait_for(self._ends[stream].wait(), _WAIT_S)
        return self._headers[stream]

    async def settled(self) -> None:
        """Return once the server has said its settings."""
        await asyncio.wait_for(self._settings.wait(), _WAIT_S)

    async def closed(self, wait_s: float) -> None:
        """Return once the server has closed the connection.

        Raises:
            TimeoutError: it has not within `wait_s` seconds.
        """
        await asyncio.wait_for(asyncio.shield(self._reading), wait_s)

    def close(self) -> None:
        self._reading.cancel()
        self._writer.close()

    async def _read(self) -> None:
        frames = http2.FrameReader()
        while data := await self._reader.read(1 << 16):
            for frame in frames.feed(data):
                self._take(frame)
        for end in list(self._ends.values()):
            end.set()

    def _take(self, frame: http2.Frame) -> None:
        if frame.kind == FrameType.SETTINGS and not frame.flags & http2.ACK:
            for at in range(0, len(frame.payload), 6):
                name, value = struct.unpack_from(">HI", frame.payload, at)
                if name == _INITIAL_WINDOW:
                    self.initial_window = value
            self._writer.write(http2.frame(FrameType.SETTINGS, http2.ACK, 0))
            self._settings.set()
        elif frame.kind == FrameType.PING and not frame.flags & http2.ACK:
            self._writer.write(http2.frame(FrameType.PING, http2.ACK, 0, frame.payload))
        elif frame.kind == FrameType.HEADERS:
            self._headers[frame.stream] |= http2.decode_headers(http2.header_block(frame))
        if frame.kind == FrameType.RST_STREAM or (
            frame.kind in (FrameType.HEADERS, FrameType.DATA) and frame.flags & http2.END_STREAM
        ):
            self._ends[frame.stream].set()
