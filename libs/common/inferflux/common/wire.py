"""Finds out what is wrong with bytes that protobuf refused to parse."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from inferflux.common.errors import InvalidArgument

_VARINT, _FIXED64, _BYTES, _GROUP_START, _GROUP_END, _FIXED32 = range(6)
_MAX_DEPTH = 50


def explain(data: bytes, descriptor: Descriptor | None, parser_message: str) -> InvalidArgument:
    """The error to refuse a request with, naming the field when its text is not UTF-8."""
    field = find_invalid_utf8(data, descriptor) if descriptor is not None else ""
    if field:
        message = f"{field} is not valid UTF-8 (use a bytes field for text that may not be)"
        return InvalidArgument(message, field=field, reason="INVALID_UTF8")
    return InvalidArgument(f"the request cannot be decoded: {parser_message}", reason="UNDECODABLE")


def find_invalid_utf8(data: bytes, descriptor: Descriptor) -> str:
    """The path of the first string field that is not UTF-8, such as `messages[1].content`; "" if none is."""
    try:
        return _search(memoryview(data), descriptor, 0)
    except _MalformedError:
        return ""


class _MalformedError(Exception):
    pass


def _search(data: memoryview, descriptor: Descriptor, depth: int) -> str:
    if depth > _MAX_DEPTH:
        return ""
    counts: dict[int, int] = {}
    for number, value in _delimited_fields(data):
        field = descriptor.fields_by_number.get(number)
        if field is None:
            continue
        index = counts[number] = counts.get(number, -1) + 1
        name = f"{field.name}[{index}]" if field.is_repeated else field.name
        if field.type == FieldDescriptor.TYPE_STRING and not _is_utf8(value):
            return name
        if field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type is not None:
            inner = _search(value, field.message_type, depth + 1)
            if inner:
                return f"{name}.{inner}"
    return ""


def _delimited_fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Field number and bytes of every length-delimited field."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == _VARINT:
            _, position = _varint(data, position)
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
        elif kind == _BYTES:
            size, position = _varint(data, position)
            if position + size > len(data):
                raise _MalformedError
            yield tag >> 3, data[position : position + size]
            position += size
        elif kind not in (_GROUP_START, _GROUP_END):
            raise _MalformedError


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


def _is_utf8(value: memoryview) -> bool:
    try:
        str(value, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
