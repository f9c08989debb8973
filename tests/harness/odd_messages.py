"""Messages that no service sends: random bytes, damaged encodings, and valid ones with odd values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.internal.encoder import TagBytes
from google.protobuf.internal.wire_format import WIRETYPE_LENGTH_DELIMITED
from google.protobuf.message import EncodeError, Message

_INTEGERS = (0, 1, 2, 3, 99, 256, 1000, 10_000_000, 2**31 - 1, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1, -1)
_FLOATS = (0.0, -1.0, 2.0, 1e-38, 1e308, float("nan"), float("inf"), float("-inf"))
_TEXTS = ("", " ", "a b", "a.b", ">", "*", "\x00", "é" * 40, "x" * 65, "x" * 70_000, "$JS.API.STREAM.DELETE")
# Of all texts of a list: a message has to fit into one of NATS.
_MOST_CHARACTERS = 1 << 20
_DEEPEST = 4


def odd_messages(rng: Random, usual: Message, n: int) -> Iterator[bytes]:
    """`n` payloads around a message as it usually is."""
    data = usual.SerializeToString()
    for _ in range(n):
        match rng.randrange(8):
            case 0:
                yield rng.randbytes(rng.choice([0, 1, 20, 500]))
            case 1:
                yield data[: rng.randrange(len(data) + 1)]
            case 2:
                damaged = bytearray(data or b"\x00")
                for _ in range(rng.randrange(1, 4)):
                    damaged[rng.randrange(len(damaged))] = rng.randrange(256)
                yield bytes(damaged)
            case 3:
                yield data + rng.randbytes(rng.randrange(40))
            case _:
                yield _with_odd_values(rng, usual)


def huge_messages(usual: Message, size: int) -> Iterator[bytes]:
    """Encodings of about `size` bytes: of empty submessages for each repeated field, and of zeros."""
    for field in usual.DESCRIPTOR.fields:
        if field.is_repeated and field.message_type is not None:
            empty = TagBytes(field.number, WIRETYPE_LENGTH_DELIMITED) + b"\0"
            yield usual.SerializeToString() + empty * (size // len(empty))
    yield b"\x00" * size


def _with_odd_values(rng: Random, usual: Message) -> bytes:
    message = type(usual)()
    message.CopyFrom(usual)
    for _ in range(rng.randrange(1, 4)):
        _spoil(rng, message, 0)
    try:
        return message.SerializeToString()
    except (EncodeError, UnicodeError):
        return b""


def _spoil(rng: Random, message: Any, depth: int) -> None:
    """Set one field of a message, or of one within it, to an odd value."""
    fields = list(message.DESCRIPTOR.fields)
    if not fields:
        return
    field = rng.choice(fields)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        try:
            getattr(message, field.name)[rng.choice(_INTEGERS)] = rng.choice(_FLOATS)
        except (ValueError, TypeError):
            return
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        if field.is_repeated:
            inner = rng.choice(inner) if len(inner) and rng.random() < 0.7 else inner.add()
        else:
            inner.SetInParent()
        if depth < _DEEPEST:
            _spoil(rng, inner, depth + 1)
    else:
        value = _odd_value(rng, field)
        try:
            if field.is_repeated:
                n = rng.choice([1, 2, 3000])
                if isinstance(value, str):
                    n = max(1, min(n, _MOST_CHARACTERS // max(len(value), 1)))
                getattr(message, field.name).extend([value] * n)
            else:
                setattr(message, field.name, value)
        except (ValueError, TypeError):
            return  # it does not fit the field


def _odd_value(rng: Random, field: FieldDescriptor) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return rng.choice(_TEXTS)
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return rng.choice(_FLOATS)
        case FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case _:
            return rng.choice(_INTEGERS)


def resident_bytes(pid: int) -> int:
    """Memory that a process has in use."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096
