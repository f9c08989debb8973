"""Protobuf messages as JSON schemas: what a body may have, and what an answer has. Pure.

https://protobuf.dev/programming-guides/json/ is the mapping. A body may spell values in more ways than an
answer does: integers as texts, and null for what is absent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

Schema = dict[str, Any]

_NULL: Schema = {"type": "null"}
_INTEGER_TEXT: Schema = {"type": "string", "pattern": "^-?[0-9]+$"}
_BOUNDS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_AS_TEXT = {FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64}
_FLOATS = {FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE}
# Those of protobuf's own messages that are texts in JSON.
_TEXTS: dict[str, Schema] = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.FieldMask": {"type": "string"},
}


def body_name(message: Descriptor) -> str:
    """The schema of a message that a client sends."""
    return f"{message.full_name}.Body"


def answer_name(message: Descriptor) -> str:
    """The schema of a message that a client receives."""
    return str(message.full_name)


def schemas(bodies: Iterable[Descriptor], answers: Iterable[Descriptor]) -> dict[str, Schema]:
    """The schemas of these messages and of all that are in them, by name."""
    sent = {body_name(message): _body(message) for message in _with_inner(bodies)}
    received = {answer_name(message): _answer(message) for message in _with_inner(answers)}
    return sent | received


def _with_inner(messages: Iterable[Descriptor]) -> dict[Descriptor, None]:
    """These messages and those of their fields, once each."""
    found: dict[Descriptor, None] = {}
    left = list(messages)
    while left:
        message = left.pop()
        if message.full_name in _TEXTS or message in found:
            continue
        if not message.GetOptions().map_entry:
            found[message] = None
        left += [field.message_type for field in message.fields if field.message_type is not None]
    return found


def _body(message: Descriptor) -> Schema:
    properties = {field.name: _in_body(field) for field in message.fields}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _in_body(field: FieldDescriptor) -> Schema:
    if entry := _map_value(field):
        value: Schema = {"type": "object", "additionalProperties": _given(entry)}
    elif field.is_repeated:
        value = {"type": "array", "items": _given(field)}
    else:
        value = _given(field)
    return {"anyOf": [value, _NULL]}


def _given(field: FieldDescriptor) -> Schema:
    """A value in a body."""
    if field.message_type is not None:
        return _TEXTS.get(field.message_type.full_name) or _ref(body_name(field.message_type))
    if field.enum_type is not None:
        return {"anyOf": [_names(field.enum_type), {"type": "integer"}]}
    if field.cpp_type in _BOUNDS:
        low, high = _BOUNDS[field.cpp_type]
        return {"anyOf": [{"type": "integer", "minimum": low, "maximum": high}, _INTEGER_TEXT]}
    return _number() if field.cpp_type in _FLOATS else _plain(field)


def _answer(message: Descriptor) -> Schema:
    properties = {field.name: _in_answer(field) for field in message.fields}
    required = [field.name for field in message.fields if not field.has_presence]
    return {"type": "object", "required": required, "properties": properties}


def _in_answer(field: FieldDescriptor) -> Schema:
    if entry := _map_value(field):
        return {"type": "object", "additionalProperties": _told(entry)}
    return {"type": "array", "items": _told(field)} if field.is_repeated else _told(field)


def _told(field: FieldDescriptor) -> Schema:
    """A value in an answer."""
    if field.message_type is not None:
        return _TEXTS.get(field.message_type.full_name) or _ref(answer_name(field.message_type))
    if field.enum_type is not None:
        return _names(field.enum_type)
    if field.cpp_type in _AS_TEXT:
        return _INTEGER_TEXT
    if field.cpp_type in _BOUNDS:
        return {"type": "integer"}
    return _number() if field.cpp_type in _FLOATS else _plain(field)


def _map_value(field: FieldDescriptor) -> FieldDescriptor | None:
    entry = field.message_type
    is_map = entry is not None and entry.GetOptions().map_entry
    return entry.fields_by_name["value"] if entry is not None and is_map else None


def _names(enum: EnumDescriptor) -> Schema:
    return {"enum": [value.name for value in enum.values]}


def _number() -> Schema:
    return {"anyOf": [{"type": "number"}, {"type": "string"}]}


def _plain(field: FieldDescriptor) -> Schema:
    return {"type": "boolean" if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL else "string"}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
