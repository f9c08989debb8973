"""How a gateway and its tokenizer processes frame messages: four bytes of length, then protobuf."""

from __future__ import annotations

import struct

LENGTH = struct.Struct("<I")


def frame(payload: bytes) -> bytes:
    """One message as it goes over the socket."""
    return LENGTH.pack(len(payload)) + payload
