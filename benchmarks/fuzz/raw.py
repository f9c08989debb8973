"""Bytes that no gRPC client sends: odd headers and methods, frames that break off, connections that do."""

from __future__ import annotations

import asyncio
import random
import struct
from contextlib import suppress

from benchmarks.load import http2
from benchmarks.load.http2 import FrameType

_PATIENCE_S = 0.3
_HEADERS = (
    ("authorization", "Bearer \udcff\udcfe"),
    ("x-request-id", "\udcff"),
    ("x-\udcff", "a"),
    ("x-odd-bin", "!!!"),
    ("grpc-timeout", "-1S"),
    ("grpc-timeout", "99999999999H"),
    ("grpc-encoding", "gzip"),
    ("grpc-encoding", "\udcff"),
    ("content-length", "-1"),
    ("te", "x" * 20_000),
    (":path", "/twice"),
    ("content-type", "text/html"),
)


class RawFuzzer:
    """One connection after the other, each with some frames of its own."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    async def connection(self, port: int, paths: list[str]) -> None:
        """Open one, send, look for a moment, and leave in the middle of whatever it is."""
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(self._draw(paths))
                await asyncio.wait_for(writer.drain(), _PATIENCE_S)
                await asyncio.wait_for(reader.read(1 << 16), _PATIENCE_S * self._random.random())
            except TimeoutError:
                pass
            finally:
                writer.transport.abort()

    def _draw(self, paths: list[str]) -> bytes:
        if self._random.random() < 0.1:
            return self._random.randbytes(self._random.choice((1, 24, 1000)))
        parts = [http2.opening()]
        parts += [self._call(1 + 2 * number, paths) for number in range(self._random.choice((1, 2, 8)))]
        data = b"".join(parts)
        return data[: self._random.randrange(len(data))] if self._random.random() < 0.2 else data

    def _call(self, stream: int, paths: list[str]) -> bytes:
        path = self._random.choice((*paths, "/\udcff\udcfe/x", "", "*", "/no.such/Method", "/" + "x" * 3000))
        headers = [
            (":method", self._random.choice(("POST", "POST", "POST", "GET", "\udcff"))),
            (":scheme", "http"),
            (":path", path),
            (":authority", "x"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *self._random.sample(_HEADERS, self._random.choice((0, 0, 1, 2))),
        ]
        frames = http2.frame(FrameType.HEADERS, http2.END_HEADERS, stream, http2.encode_headers(headers))
        size = self._random.choice((0, 1, 100, 4_097, 2**24, 2**32 - 1))
        body = bytes((self._random.choice((0, 0, 0, 1, 255)),)) + struct.pack(">I", size)
        body += self._random.randbytes(min(size, self._random.choice((0, 1, 100, 5_000))))
        flags = self._random.choice((0, http2.END_STREAM))
        frames += http2.frame(FrameType.DATA, flags, stream, body)
        if self._random.random() < 0.3:
            kind = self._random.choice(list(FrameType))
            frames += http2.frame(kind, self._random.randrange(256), stream, self._random.randbytes(8))
        return frames
