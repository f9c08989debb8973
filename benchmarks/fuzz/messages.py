"""Odd messages of any type, drawn from their descriptors. No I/O: the same random source draws the same."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

# Text that means something somewhere: names, ids, keys, subjects, templates, and what is none of these.
TEXTS = (
    "", " ", "a", "user", "assistant", "system", "inference", "admin", "models", "default", "inferflux-demo",
    "worker-0", "request-1", "a b", "a.b", ">", "*", "../../etc/passwd", "{{ 7 * 7 }}", "{% for %}", "%s%n",
    "\0", "\x1b[2J", "ä" * 50, "😀" * 20, "\u202e", "x" * 64, "x" * 65, "x" * 5_000, "key_0123456789abcdef",
    "ifx_" + "A" * 43, "inferflux.v1.InferenceService", "protos", "Infinity", "NaN", "null", "-1", "1e999",
)  # fmt: skip
INTEGERS = (
    0,
    1,
    -1,
    2,
    5,
    64,
    100,
    101,
    1000,
    2**15,
    2**31 - 1,
    -(2**31),
    2**32 - 1,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
)
FLOATS = (0.0, -0.0, 1.0, 0.5, -1.0, 1e-38, 1e-45, 3.4e38, math.inf, -math.inf, math.nan, 100.5)
_BOUNDS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_MAX_DEPTH = 6


class Messages:
    """Draws messages.

    Args:
        texts: further texts that mean something to the server, such as a model's name.
    """

    def __init__(self, source: random.Random, texts: tuple[str, ...] = ()) -> None:
        self._random = source
        self._texts = TEXTS + texts * 4

    def text(self) -> str:
        return self._random.choice(self._texts)

    def draw(self, kind: Callable[[], Message]) -> bytes:
        """The bytes of a message of this class; now and then spoilt."""
        message = kind()
        self._fill(message, message.DESCRIPTOR, 0)
        data = message.SerializeToString()
        roll = self._random.random()
        if roll < 0.15:
            return self._spoilt(data)
        if roll < 0.18:
            return self._random.randbytes(self._random.choice((1, 10, 100, 5_000)))
        if roll < 0.19:
            return bytes(self._random.choice((b"\x12\x00", b"\x0a\x01a", b"\xff"))) * 60_000
        return data

    def _fill(self, message: Any, descriptor: Any, depth: int) -> None:
        for field in descriptor.fields:
            if self._random.random() < 0.3:
                continue
            if field.is_repeated:
                self._fill_repeated(message, field, depth)
            elif field.message_type is not None:
                if depth < _MAX_DEPTH:
                    inner = getattr(message, field.name)
                    inner.SetInParent()
                    self._fill(inner, field.message_type, depth + 1)
            else:
                setattr(message, field.name, self._scalar(field))

    def _fill_repeated(self, message: Any, field: FieldDescriptor, depth: int) -> None:
        items = getattr(message, field.name)
        count = self._random.choice((0, 1, 1, 2, 3, 40))
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
            for _ in range(count):
                if value.message_type is None:
                    items[self._scalar(key)] = self._scalar(value)
        elif entry is not None:
            if depth < _MAX_DEPTH:
                for _ in range(count):
                    self._fill(items.add(), entry, depth + 1)
        else:
            items.extend(self._scalar(field) for _ in range(count))

    def _scalar(self, field: FieldDescriptor) -> Any:
        kind = field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING:
            is_text = field.type == FieldDescriptor.TYPE_STRING
            return self.text() if is_text else self.text().encode() + self._random.randbytes(3)
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return self._random.random() < 0.5
        if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
            return self._random.choice(FLOATS)
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return self._random.choice((0, 1, 2, 99, -1))
        low, high = _BOUNDS[kind]
        return min(max(self._random.choice(INTEGERS), low), high)

    def _spoilt(self, data: bytes) -> bytes:
        spoilt = bytearray(data or b"\0")
        for _ in range(self._random.randint(1, 4)):
            spoilt[self._random.randrange(len(spoilt))] = self._random.randrange(256)
        if self._random.random() < 0.3:
            del spoilt[self._random.randrange(len(spoilt)) :]
        return bytes(spoilt)
