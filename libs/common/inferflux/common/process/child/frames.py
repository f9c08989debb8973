"""Protobuf messages over a socket pair between a process and its child: four bytes of length (little-endian),
then the message.

The parent's end is asyncio; the child's end blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, TypeVar

from google.protobuf.message import Message

_LENGTH = struct.Struct("<I")
_READ_SIZE = 1 << 18
# What the parent reads ahead, in bytes. A single message may be larger.
_READ_AHEAD = 1 << 24

_Received = TypeVar("_Received", bound=Message)


def pack(message: Message) -> bytes:
    """One message as it goes over the socket."""
    payload = message.SerializeToString()
    return _LENGTH.pack(len(payload)) + payload


class ChildEnd(Generic[_Received]):
    """The child's end. One thread may receive while another sends.

    Args:
        parse: makes a received message of its bytes.
    """

    def __init__(self, sock: socket.socket, parse: Callable[[bytes], _Received]) -> None:
        self._sock = sock
        self._parse = parse
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._woken: socket.socket | None = None
        self._buffer = bytearray()

    def receive(self) -> _Received:
        """The next message, however long it takes to come.

        Raises:
            EOFError: the parent closed its end.
        """
        while (payload := self._next()) is None:
            self._read()
        return self._parse(payload)

    def arrived(self, wait_s: float | None) -> Iterator[_Received]:
        """Every message that has arrived; waits up to `wait_s` seconds for the first, for ever with None.

        Raises:
            EOFError: the parent closed its end.
        """
        ready = [fd for fd, _ in self._poll.poll(None if wait_s is None else math.ceil(wait_s * 1000))]
        if self._woken is not None and self._woken.fileno() in ready:
            self._woken.recv(_READ_SIZE)
        if self._sock.fileno() in ready:
            self._read()
            while self._ends_within_a_message():
                self._read()
        while (payload := self._next()) is not None:
            yield self._parse(payload)

    def waker(self) -> Callable[[], None]:
        """Make what has `arrived` wait no longer, when another thread calls it."""
        self._woken, waking = socket.socketpair()
        waking.setblocking(False)
        self._poll.register(self._woken, select.POLLIN)

        def wake() -> None:
            with contextlib.suppress(BlockingIOError):  # it was woken more often than it looked
                waking.send(b"\0")

        return wake

    def send(self, *messages: Message) -> None:
        """Send messages in one go; waits while the parent takes nothing."""
        self._sock.sendall(b"".join(map(pack, messages)))

    def _read(self) -> None:
        data = self._sock.recv(_READ_SIZE)
        if not data:
            raise EOFError("the parent closed its end")
        self._buffer += data

    def _ends_within_a_message(self) -> bool:
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            at += _LENGTH.size + _LENGTH.unpack_from(self._buffer, at)[0]
        return at != len(self._buffer)

    def _next(self) -> bytes | None:
        """Take the next whole message from the buffer."""
        if len(self._buffer) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
        if len(self._buffer) < end:
            return None
        payload = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return payload


class ParentEnd(Generic[_Received]):
    """The parent's end. Make one with `open`."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        parse: Callable[[bytes], _Received],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._parse = parse

    @classmethod
    async def open(cls, sock: socket.socket, parse: Callable[[bytes], _Received]) -> ParentEnd[_Received]:
        """Take over `sock`; `parse` makes a received message of its bytes."""
        reader, writer = await asyncio.open_connection(sock=sock, limit=_READ_AHEAD)
        return cls(reader, writer, parse)

    def send(self, message: Message) -> None:
        """Queue a message; it is lost without an error if the child is gone, which `messages` tells."""
        if not self._writer.is_closing():
            self._writer.write(pack(message))

    async def messages(self) -> AsyncIterator[_Received]:
        """Every message until the child ends."""
        while True:
            try:
                header = await self._reader.readexactly(_LENGTH.size)
                payload = await self._reader.readexactly(_LENGTH.unpack(header)[0])
            except (asyncio.IncompleteReadError, OSError):
                return
            yield self._parse(payload)

    def close(self) -> None:
        """Close this end, which the child takes for the end of its work."""
        self._writer.close()
