"""As much of HTTP/2 as a client of gRPC streams takes, with little work per message. No I/O.

The peer is told to keep no header table (RFC 7541, 4.2), so that headers are literals or come from the static
table.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
LARGEST_FRAME = 16_384

_HEADER_TABLE_SIZE, _INITIAL_WINDOW = 0x1, 0x4
_WINDOW = 2**31 - 1
DEFAULT_WINDOW = 65_535
_PRIORITY_LENGTH = 5
_PADDED, _PRIORITY = 0x8, 0x20
_HEAD = struct.Struct(">IBBI")
_SETTING = struct.Struct(">HI")


class FrameType(IntEnum):
    """Types of frames."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Frame(NamedTuple):
    """One frame; `kind` is a FrameType or a number of a type not known here."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class Http2Error(Exception):
    """The peer sent something that is not understood here."""


def frame(kind: FrameType, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame's bytes."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def opening() -> bytes:
    """Return what a client sends first: no header table, and windows that need no more attention for 2 GB."""
    settings = struct.pack(">HIHI", _HEADER_TABLE_SIZE, 0, _INITIAL_WINDOW, _WINDOW)
    window = struct.pack(">I", _WINDOW - DEFAULT_WINDOW)
    return PREFACE + frame(FrameType.SETTINGS, 0, 0, settings) + frame(FrameType.WINDOW_UPDATE, 0, 0, window)


@dataclass(slots=True)
class _Rest:
    """The rest of a request, which has not gone yet.

    Attributes:
        credit: what the stream's window is beyond the initial one.
    """

    data: bytes
    credit: int = 0


class Requests:
    """Requests on their way: each goes as far as the windows of its stream and its connection let it."""

    def __init__(self) -> None:
        self._window = DEFAULT_WINDOW
        self._initial_window = DEFAULT_WINDOW
        self._rests: dict[int, _Rest] = {}

    def begin(self, stream: int, headers: Iterable[tuple[str, str]], message: bytes) -> bytes:
        """Return what goes at once of a gRPC request: its headers, and what is let of its message."""
        self._rests[stream] = _Rest(b"\0" + struct.pack(">I", len(message)) + message)
        return frame(FrameType.HEADERS, END_HEADERS, stream, encode_headers(headers)) + self._let(stream)

    def end(self, stream: int) -> None:
        """Nothing more of this one goes."""
        self._rests.pop(stream, None)

    def take(self, one: Frame) -> bytes:
        """Return what goes now that the server sent this SETTINGS or WINDOW_UPDATE.

        Raises:
            Http2Error: settings are cut off.
        """
        if one.kind == FrameType.SETTINGS:
            if len(one.payload) % _SETTING.size:
                raise Http2Error("settings that are cut off")
            told = dict(_SETTING.iter_unpack(one.payload))
            self._initial_window = told.get(_INITIAL_WINDOW, self._initial_window)
        elif one.stream == 0:
            self._window += int.from_bytes(one.payload)
        elif one.stream in self._rests:
            self._rests[one.stream].credit += int.from_bytes(one.payload)
        return b"".join([self._let(stream) for stream in list(self._rests)])

    def _let(self, stream: int) -> bytes:
        rest = self._rests[stream]
        # A window is below 0 where the server made the initial one smaller after this had gone.
        size = max(0, min(len(rest.data), self._window, self._initial_window + rest.credit))
        part, rest.data = rest.data[:size], rest.data[size:]
        self._window -= size
        rest.credit -= size
        if not rest.data:
            del self._rests[stream]
        frames: list[bytes] = []
        for at in range(0, size, LARGEST_FRAME):
            is_last = not rest.data and at + LARGEST_FRAME >= size
            payload = part[at : at + LARGEST_FRAME]
            frames.append(frame(FrameType.DATA, END_STREAM if is_last else 0, stream, payload))
        return b"".join(frames)


class FrameReader:
    """Frames out of what arrives."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole now."""
        buffer = self._buffer + data if self._buffer else data
        at, end = 0, len(buffer)
        while end - at >= 9:
            head, kind, flags, stream = _HEAD.unpack(b"\0" + buffer[at : at + 9])
            next_at = at + 9 + head
            if next_at > end:
                break
            yield Frame(kind, flags, stream & 0x7FFFFFFF, buffer[at + 9 : next_at])
            at = next_at
        self._buffer = buffer[at:]


class MessageReader:
    """gRPC messages out of a stream's data."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole now.

        Raises:
            Http2Error: one is compressed.
        """
        buffer = self._buffer + data if self._buffer else data
        messages: list[bytes] = []
        at, end = 0, len(buffer)
        while end - at >= 5:
            if buffer[at]:
                raise Http2Error("a compressed message")
            next_at = at + 5 + int.from_bytes(buffer[at + 1 : at + 5])
            if next_at > end:
                break
            messages.append(buffer[at + 5 : next_at])
            at = next_at
        self._buffer = buffer[at:]
        return messages


def header_block(one: Frame) -> bytes:
    """The header block of a HEADERS frame.

    Raises:
        Http2Error: it goes on in another frame.
    """
    if not one.flags & END_HEADERS:
        raise Http2Error("headers in more than one frame")
    block = one.payload
    if one.flags & _PADDED:
        block = block[1 : len(block) - block[0]]
    return block[_PRIORITY_LENGTH:] if one.flags & _PRIORITY else block


def encode_headers(headers: Iterable[tuple[str, str]]) -> bytes:
    """Headers as literals that no table remembers."""
    return b"".join(
        b"\0"
        + _string(name.encode(errors="surrogateescape"))
        + _string(value.encode(errors="surrogateescape"))
        for name, value in headers
    )


def _string(value: bytes) -> bytes:
    return _integer(len(value), prefix_bits=7) + value


def _integer(value: int, *, prefix_bits: int) -> bytes:
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes((value,))
    value -= limit
    parts = [limit]
    while value >= 128:
        parts.append(value % 128 + 128)
        value //= 128
    return bytes((*parts, value))


def decode_headers(block: bytes) -> dict[str, str]:
    """The literal headers of a block whose name and value are plain; others are left out.

    Raises:
        Http2Error: the block is cut off, or refers to a table there is not.
    """
    found: dict[str, str] = {}
    at = 0
    try:
        while at < len(block):
            first = block[at]
            if first & 0x80:
                _, at = _read_integer(block, at, prefix_bits=7)
            elif first & 0xE0 == 0x20:
                _, at = _read_integer(block, at, prefix_bits=5)
            else:
                index, at = _read_integer(block, at, prefix_bits=6 if first & 0x40 else 4)
                name: str | None = ""
                if not index:
                    name, at = _read_string(block, at)
                value, at = _read_string(block, at)
                if name and value is not None:
                    found[name] = value
    except IndexError:
        raise Http2Error("headers that are cut off") from None
    return found


def _read_integer(block: bytes, at: int, *, prefix_bits: int) -> tuple[int, int]:
    limit = (1 << prefix_bits) - 1
    value = block[at] & limit
    at += 1
    if value < limit:
        return value, at
    shift = 0
    while True:
        part = block[at]
        at += 1
        value += (part & 127) << shift
        shift += 7
        if part < 128:
            return value, at


def _read_string(block: bytes, at: int) -> tuple[str | None, int]:
    """(the string, or None where it is Huffman-coded, and where it ends)."""
    is_coded = bool(block[at] & 0x80)
    length, at = _read_integer(block, at, prefix_bits=7)
    end = at + length
    if end > len(block):
        raise IndexError
    return (None if is_coded else block[at:end].decode("utf-8", "replace")), end
