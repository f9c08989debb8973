"""Attacks by strangers: processes of their own that send bytes to a gateway until they are ended.

python -m benchmarks.hostile.strangers NAME PORT METRICS_PORT
"""

from __future__ import annotations

import asyncio
import os
import secrets
import struct
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import http2
from benchmarks.load.http2 import FrameType

CHAT = "/inferflux.v1.InferenceService/Chat"
CHECK = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

_LARGE = 16_700_000
_BLOCK = 16_384
_DEFAULT_WINDOW, _INITIAL_WINDOW = 65_535, 0x4
CONTROL = "control"
BEGUN = "begun"
"""What an attack prints when it begins."""
_LOWEST = 19


@dataclass(frozen=True, slots=True)
class Call:
    """The part of a call that is sent: headers, and as much of a message as the server lets in.

    Attributes:
        size: of the message as its first five bytes say.
        sent: bytes of it that are sent, the pattern repeated.
    """

    path: str = CHAT
    headers: tuple[tuple[str, str], ...] = ()
    size: int = 0
    sent: int = 0
    pattern: bytes = b"\x12\x00"


class Connection:
    """Calls over one connection, as HTTP/2's windows allow; a call that ends is followed by another."""

    def __init__(self, calls: Callable[[], Call], at_once: int) -> None:
        self._calls = calls
        self._at_once = at_once
        self._window = _DEFAULT_WINDOW
        self._stream_window = _DEFAULT_WINDOW
        self._next = 1
        # Stream -> the bytes it may send, and the call and how much of it is sent.
        self._windows: dict[int, int] = {}
        self._open: dict[int, tuple[Call, int]] = {}

    async def run(self, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(http2.opening())
            frames = http2.FrameReader()
            while True:
                self._begin(writer)
                self._send(writer)
                await writer.drain()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        data = await reader.read(1 << 16)
                        if not data:
                            return
                        for frame in frames.feed(data):
                            self._take(frame, writer)
        finally:
            writer.close()

    def _begin(self, writer: asyncio.StreamWriter) -> None:
        while len(self._open) < self._at_once:
            call = self._calls()
            stream, self._next = self._next, self._next + 2
            named = ((":method", "POST"), (":scheme", "http"), (":path", call.path), (":authority", "x"))
            block = http2.encode_headers(
                (*named, ("te", "trailers"), ("content-type", "application/grpc"), *call.headers)
            )
            writer.write(http2.frame(FrameType.HEADERS, http2.END_HEADERS, stream, block))
            self._open[stream] = call, 0
            self._windows[stream] = self._stream_window

    def _send(self, writer: asyncio.StreamWriter) -> None:
        for stream, (call, sent) in list(self._open.items()):
            end = 5 + call.sent if call.size else 0
            while sent < end and (room := min(self._window, self._windows[stream], _BLOCK, end - sent)) > 0:
                data = (b"\0" + struct.pack(">I", call.size) if not sent else b"") + call.pattern * (
                    room // len(call.pattern) + 1
                )
                writer.write(http2.frame(FrameType.DATA, 0, stream, data[:room]))
                sent += room
                self._window -= room
                self._windows[stream] -= room
            self._open[stream] = call, sent
            if call.size and sent >= 5 + call.size:
                writer.write(http2.frame(FrameType.DATA, http2.END_STREAM, stream))

    def _take(self, frame: http2.Frame, writer: asyncio.StreamWriter) -> None:
        if frame.kind == FrameType.SETTINGS and not frame.flags & http2.ACK:
            for at in range(0, len(frame.payload), 6):
                name, value = struct.unpack_from(">HI", frame.payload, at)
                if name == _INITIAL_WINDOW:
                    for stream in self._windows:
                        self._windows[stream] += value - self._stream_window
                    self._stream_window = value
            writer.write(http2.frame(FrameType.SETTINGS, http2.ACK, 0))
        elif frame.kind == FrameType.PING and not frame.flags & http2.ACK:
            writer.write(http2.frame(FrameType.PING, http2.ACK, 0, frame.payload))
        elif frame.kind == FrameType.WINDOW_UPDATE:
            (more,) = struct.unpack(">I", frame.payload)
            if not frame.stream:
                self._window += more
            elif frame.stream in self._windows:
                self._windows[frame.stream] += more
        elif frame.kind == FrameType.RST_STREAM or (
            frame.kind in (FrameType.HEADERS, FrameType.DATA) and frame.flags & http2.END_STREAM
        ):
            self._open.pop(frame.stream, None)
            self._windows.pop(frame.stream, None)


async def calls(port: int, call: Callable[[], Call], *, connections: int, at_once: int) -> None:
    """Keep calls open over some connections."""

    async def keep() -> None:
        while True:
            with suppress(OSError):
                await Connection(call, at_once).run(port)
            await asyncio.sleep(0.05)

    await asyncio.gather(*(keep() for _ in range(connections)))


async def connections(port: int, first: bytes, *, count: int) -> None:
    """Keep connections open that say a few bytes and then nothing."""

    async def keep() -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    writer.write(first)
                    while await reader.read(1 << 16):
                        pass
                finally:
                    writer.close()
            await asyncio.sleep(0.2)

    await asyncio.gather(*(keep() for _ in range(count)))


def _unknown_key() -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer ifx_{secrets.token_urlsafe(32)}"),)


def _large(pattern: bytes, headers: Iterable[tuple[str, str]] = (), path: str = CHAT) -> Call:
    return Call(path, tuple(headers), size=_LARGE, sent=_LARGE, pattern=pattern)


Attack = Callable[[int, int], Awaitable[None]]


async def compute() -> None:
    """Send nothing, and take all the time of a core that is left."""
    while True:
        pass


ATTACKS: dict[str, tuple[str, Attack]] = {
    CONTROL: ("nothing: a control, with all cores busy", lambda _, __: compute()),
    "malformed": (
        "16.7 MB that are no message, 8 calls at a time",
        lambda port, _: calls(port, lambda: _large(b"\xff"), connections=4, at_once=2),
    ),
    "empty-messages": (
        "16.7 MB of empty messages, 8 calls at a time",
        lambda port, _: calls(port, lambda: _large(b"\x12\x00"), connections=4, at_once=2),
    ),
    "unknown-keys": (
        "the same with keys that look real",
        lambda port, _: calls(port, lambda: _large(b"\x12\x00", _unknown_key()), connections=4, at_once=2),
    ),
    "open-calls": (
        "4,000 open calls without a key",
        lambda port, _: calls(port, lambda: _large(b"x"), connections=40, at_once=100),
    ),
    "open-calls-keys": (
        "4,000 open calls with keys that look real",
        lambda port, _: calls(port, lambda: _large(b"x", _unknown_key()), connections=40, at_once=100),
    ),
    "health-bodies": (
        "200 health checks of 16.7 MB",
        lambda port, _: calls(port, lambda: _large(b"x", path=CHECK), connections=20, at_once=10),
    ),
    "health-within": (
        "200 health checks of 5 MB",
        lambda port, _: calls(
            port, lambda: Call(CHECK, size=5_000_000, sent=4_999_999), connections=20, at_once=10
        ),
    ),
    "slow": (
        "4,000 health and reflection calls that send one byte",
        lambda port, _: calls(
            port,
            lambda: Call(secrets.choice((CHECK, REFLECTION)), size=100, sent=1),
            connections=40,
            at_once=100,
        ),
    ),
    "headers": (
        "headers of odd bytes, 64 calls at a time",
        lambda port, _: calls(
            port,
            lambda: Call(headers=(("authorization", "\udcff\udcfe"), ("x-request-id", "\udcff"))),
            connections=4,
            at_once=16,
        ),
    ),
    "methods": (
        "methods of odd bytes, 64 calls at a time",
        lambda port, _: calls(port, lambda: Call(path="/\udcff/\udcfe"), connections=4, at_once=16),
    ),
    "connections": (
        "2,000 connections that say nothing",
        lambda port, _: connections(port, b"", count=2000),
    ),
    "metrics": (
        "2,000 connections to the metrics port",
        lambda _, metrics: connections(metrics, b"GET /metrics HTTP/1.1\r\n", count=2000),
    ),
}


def give_way() -> None:
    """Leave the cores to all other processes.

    Where the kernel groups processes by session, niceness and policy count within a group, and the group has
    a niceness of its own. So this process must be the first of its session.
    """
    os.nice(_LOWEST)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):  # a kernel without such groups
        Path("/proc/self/autogroup").write_text(str(_LOWEST))


def main() -> None:
    give_way()
    name, port, metrics = sys.argv[1:]
    _, attack = ATTACKS[name]

    async def run() -> None:
        print(BEGUN, flush=True)
        await attack(int(port), int(metrics))

    with suppress(KeyboardInterrupt):
        asyncio.run(run())


if __name__ == "__main__":
    main()
