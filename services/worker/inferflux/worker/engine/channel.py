"""Frames between a worker and its engine: a four-byte little-endian length, then the message.

The engine's side blocks (it has one thread and nothing else to do); the worker's side is asyncio.
"""

from __future__ import annotations

import asyncio
import math
import select
import socket
import struct
from collections.abc import AsyncIterator, Iterator

from inferflux.v1 import engine_pb2

_LENGTH = struct.Struct("<I")
_READ_SIZE = 1 << 18


class EngineEnd:
    """The engine's end: commands in, reports out."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._buffer = bytearray()

    def commands(self, wait_s: float | None) -> Iterator[engine_pb2.EngineCommand]:
        """Every command that has arrived; waits up to `wait_s` seconds for the first, for ever with None.

        Raises:
            EOFError: the worker is gone.
        """
        if self._poll.poll(None if wait_s is None else math.ceil(wait_s * 1000)):
            self._read_some()
        while True:
            frame = self._next_frame()
            if frame is None:
                return
            yield engine_pb2.EngineCommand.FromString(frame)

    def send(self, report: engine_pb2.EngineReport) -> None:
        payload = report.SerializeToString()
        self._sock.sendall(_LENGTH.pack(len(payload)) + payload)

    def _read_some(self) -> None:
        data = self._sock.recv(_READ_SIZE)
        if not data:
            raise EOFError("the worker closed the channel")
        self._buffer += data
        while self._is_incomplete():
            more = self._sock.recv(_READ_SIZE)
            if not more:
                raise EOFError("the worker closed the channel")
            self._buffer += more

    def _is_incomplete(self) -> bool:
        """Whether the buffer ends within a frame."""
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            at += _LENGTH.size + _LENGTH.unpack_from(self._buffer, at)[0]
        return at != len(self._buffer)

    def _next_frame(self) -> bytes | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
        frame = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return frame


class WorkerEnd:
    """The worker's end: reports in, commands out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, sock: socket.socket) -> WorkerEnd:
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 24)
        return cls(reader, writer)

    def send(self, command: engine_pb2.EngineCommand) -> None:
        """Queue a command; lost without a word if the engine is gone, which `reports` tells."""
        payload = command.SerializeToString()
        self._writer.write(_LENGTH.pack(len(payload)) + payload)

    async def reports(self) -> AsyncIterator[engine_pb2.EngineReport]:
        """Every report until the engine ends."""
        while True:
            try:
                header = await self._reader.readexactly(_LENGTH.size)
                payload = await self._reader.readexactly(_LENGTH.unpack(header)[0])
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            yield engine_pb2.EngineReport.FromString(payload)

    def close(self) -> None:
        self._writer.close()
