"""Decodes messages from strangers: measured first, and explained when protobuf refuses them.

A decoded message can take many times its size: 16 MB of empty submessages become 435 MB. A message above some
kB is therefore walked before it is decoded, and refused when it has more fields than an honest one may have.
The walk is bounded: it skips the insides of strings, and ends at the most fields allowed.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from inferflux.common.contract.errors import InvalidArgument, ResourceExhausted

# A message of this size costs little whatever is in it.
SMALL_BYTES = 64 << 10
# Above it: a chat of 10,000 messages has 30,000 fields, 1,024 logit biases 3,072.
MAX_FIELDS = 40_000

_EXPLAINED_BYTES = 64 << 10
_EXPLAINED_FIELDS = 2_000
_VARINT, _FIXED64, _BYTES, _GROUP_START, _GROUP_END, _FIXED32 = range(6)
_MAX_DEPTH = 50


def decode(
    data: bytes, parse: Callable[[bytes], Any] | None, max_bytes: int, max_fields: int = MAX_FIELDS
) -> Any:
    """The message that `data` is; `data` itself when there is no `parse`.

    Args:
        parse: a message class's FromString.

    Raises:
        ResourceExhausted: it is larger than `max_bytes`, or has more fields than is taken.
        InvalidArgument: it is not a message; names the field where that can be said.
    """
    if len(data) > max_bytes:
        message = f"the request has {len(data)} bytes; this method takes at most {max_bytes}"
        raise ResourceExhausted(message, reason="BODY_TOO_LARGE", retry_delay_s=None)
    if parse is None:
        return data
    descriptor = getattr(getattr(parse, "__self__", None), "DESCRIPTOR", None)
    if len(data) > SMALL_BYTES and descriptor is not None and has_more_fields(data, descriptor, max_fields):
        message = f"the request has more than {max_fields} fields in its {len(data)} bytes"
        raise ResourceExhausted(message, reason="TOO_MANY_FIELDS", retry_delay_s=None)
    try:
        return parse(data)
    except DecodeError as error:
        raise explain(data, descriptor, str(error)) from None


def explain(data: bytes, descriptor: Descriptor | None, parser_message: str) -> InvalidArgument:
    """The error to refuse a request with, naming the field when its text is not UTF-8.

    Only the beginning of the request is looked at.
    """
    field = find_invalid_utf8(data, descriptor) if descriptor is not None else ""
    if field:
        message = f"{field} is not valid UTF-8 (use a bytes field for text that may not be)"
        return InvalidArgument(message, field=field, reason="INVALID_UTF8")
    return InvalidArgument(f"the request cannot be decoded: {parser_message}", reason="UNDECODABLE")


def find_invalid_utf8(data: bytes, descriptor: Descriptor) -> str:
    """The path of the first string field that is not UTF-8, such as `messages[1].content`; "" if none is, or
    none within the first 2,000 fields and 64 kB of text.
    """
    try:
        return _search(memoryview(data), descriptor, _Budget(_EXPLAINED_FIELDS, _EXPLAINED_BYTES), 0)
    except (_MalformedError, _SpentError):
        return ""


def has_more_fields(data: bytes, descriptor: Descriptor, most: int) -> bool:
    """True if a message and those inside it have more than `most` fields, known ones and others.

    What follows the first malformed byte is not counted: protobuf stops there as well.
    """
    try:
        _count(memoryview(data), descriptor, _Budget(most, 0), 0)
    except _SpentError:
        return True
    except _MalformedError:
        return False
    return False


class _MalformedError(Exception):
    pass


class _SpentError(Exception):
    pass


@dataclass(slots=True)
class _Budget:
    """Budget of a walk over a message: the fields and the bytes of text that it may still read."""

    fields: int
    text_bytes: int


def _search(data: memoryview, descriptor: Descriptor, budget: _Budget, depth: int) -> str:
    if depth > _MAX_DEPTH:
        return ""
    counts: dict[int, int] = {}
    for number, value in _fields(data, budget):
        field = descriptor.fields_by_number.get(number)
        if field is None or value is None:
            continue
        index = counts[number] = counts.get(number, -1) + 1
        name = f"{field.name}[{index}]" if field.is_repeated else field.name
        if field.type == FieldDescriptor.TYPE_STRING and not _is_utf8(value, budget):
            return name
        if field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type is not None:
            inner = _search(value, field.message_type, budget, depth + 1)
            if inner:
                return f"{name}.{inner}"
    return ""


def _count(data: memoryview, descriptor: Descriptor, budget: _Budget, depth: int) -> None:
    if depth > _MAX_DEPTH:
        return
    for number, value in _fields(data, budget):
        if value is None:
            continue
        field = descriptor.fields_by_number.get(number)
        if field is not None and field.message_type is not None:
            _count(value, field.message_type, budget, depth + 1)


def _fields(data: memoryview, budget: _Budget) -> Iterator[tuple[int, memoryview | None]]:
    """Number of every field, and the bytes of those that are length-delimited."""
    position = 0
    end = len(data)
    while position < end:
        budget.fields -= 1
        if budget.fields < 0:
            raise _SpentError
        tag, position = _varint(data, position)
        kind = tag & 7
        value = None
        if kind == _VARINT:
            _, position = _varint(data, position)
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
        elif kind == _BYTES:
            size, position = _varint(data, position)
            if position + size > end:
                raise _MalformedError
            value = data[position : position + size]
            position += size
        elif kind not in (_GROUP_START, _GROUP_END):
            raise _MalformedError
        yield tag >> 3, value


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise _MalformedError


def _is_utf8(value: memoryview, budget: _Budget) -> bool:
    """True if a text is UTF-8, or its beginning that the budget allows."""
    part = value[: budget.text_bytes]
    budget.text_bytes -= len(part)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(bytes(part), len(part) == len(value))
    except UnicodeDecodeError:
        return False
    if len(part) < len(value):
        raise _SpentError
    return True
