"""As much of HTTP/2 as reading gRPC streams takes, with little work per message. No I/O.

The peer is told to keep no header table (RFC 7541, 4.2), so that headers are literals or come from the static
table.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
LARGEST_FRAME = 16_384
# What a server has to take in before it says more; nothing here waits for that.
LARGEST_REQUEST = 65_535

_HEADER_TABLE_SIZE, _INITIAL_WINDOW = 0x1, 0x4
_WINDOW = 2**31 - 1
DEFAULT_WINDOW = 65_535
_PRIORITY_LENGTH = 5
_PADDED, _PRIORITY = 0x8, 0x20
_HEAD = struct.Struct(">IBBI")


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


def request_size(message: bytes) -> int:
    """Return what a request takes of the windows of its stream and its connection, in bytes."""
    return len(message) + 5


def request(stream: int, headers: Iterable[tuple[str, str]], message: bytes) -> bytes:
    """A whole gRPC request: headers, and one message.

    Raises:
        Http2Error: the message is larger than a server takes without being asked.
    """
    data = b"\0" + struct.pack(">I", len(message)) + message
    if len(data) > LARGEST_REQUEST:
        raise Http2Error(f"a request of {len(data)} bytes is too large for this client")
    parts = [data[at : at + LARGEST_FRAME] for at in range(0, len(data), LARGEST_FRAME)]
    frames = [frame(FrameType.HEADERS, END_HEADERS, stream, encode_headers(headers))]
    frames += [frame(FrameType.DATA, 0, stream, part) for part in parts[:-1]]
    return b"".join([*frames, frame(FrameType.DATA, END_STREAM, stream, parts[-1])])


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
