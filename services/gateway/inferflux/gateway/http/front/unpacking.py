"""Bodies that a client has packed."""

from __future__ import annotations

import zlib
from typing import Protocol

from inferflux.common.contract.errors import InvalidArgument

_SHOWN = 32
# Of zlib: a gzip header; a zlib header.
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class UnknownEncoding(InvalidArgument):
    """A body is packed in a way that is not known here."""

    http_status = 415


class Unpack(Protocol):
    """Bytes of a body to at most `room` bytes of what they hold: more of them are an error elsewhere."""

    def __call__(self, data: bytes, *, room: int, is_last: bool) -> bytes: ...


def unpacker(encoding: str) -> Unpack:
    """Choose what unpacks a body's pieces, in order.

    Args:
        encoding: as the header `content-encoding` has it.

    Raises:
        UnknownEncoding: it is none of gzip, deflate and identity.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return _as_it_is
    if name not in _WINDOWS:
        message = f"content-encoding: {name[:_SHOWN]!r} is not known: send gzip, deflate, or nothing packed"
        raise UnknownEncoding(message, field="content-encoding", reason="UNKNOWN_ENCODING")
    unpacking = zlib.decompressobj(_WINDOWS[name])

    def unpack(data: bytes, *, room: int, is_last: bool) -> bytes:
        try:
            unpacked = unpacking.decompress(data, max(room, 1))
        except zlib.error:
            raise _bad(f"the body is not packed as content-encoding says: {name}") from None
        if unpacking.unused_data:
            raise _bad(f"the body has bytes after the end of its {name} data")
        if is_last and not unpacking.eof and len(unpacked) < room:
            raise _bad(f"the body's {name} data is cut: its end is missing")
        return unpacked

    return unpack


def _as_it_is(data: bytes, *, room: int, is_last: bool) -> bytes:  # noqa: ARG001 - as `Unpack` has it
    return data


def _bad(message: str) -> InvalidArgument:
    return InvalidArgument(message, field="content-encoding", reason="BAD_ENCODING")
