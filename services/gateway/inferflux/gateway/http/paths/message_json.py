"""Messages out of protobuf's JSON, with errors that name the field. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from inferflux.common.contract.errors import InvalidArgument

# Of messages in messages.
_MOST_DEPTH = 20
# Longest part of the parser's words, and of a field's name, that an error repeats.
_SHOWN = 200
_IN_FIELD = re.compile(r"Failed to parse (\w+) field: ")
_UNKNOWN = re.compile(r'has no field named "([^"]*)"')
_PLACE = re.compile(r"\s+at \w+(?:\.([\w.\[\]]+?))?\.*$")
# Messages that are something else than objects in JSON.
_OWN_JSON = "google.protobuf."


def parse_message(kind: type[Message], body: bytes) -> Message:
    """The message that a body is in protobuf's JSON; an empty body is an empty message.

    Raises:
        InvalidArgument: it is none.
    """
    message: Message = kind()
    if not body:
        return message
    try:
        given = json.loads(body, object_pairs_hook=_members)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the body is not JSON: {str(error)[:_SHOWN]}", reason="INVALID_JSON") from None
    if not isinstance(given, dict):
        raise InvalidArgument("the body is no JSON object", reason="INVALID_JSON")
    try:
        _check_objects(message.DESCRIPTOR, given, "")
        json_format.ParseDict(given, message, max_recursion_depth=_MOST_DEPTH)
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise _refused(error) from None
    return message


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object has two members of one name")
    return members


def _check_objects(message: Any, given: dict[str, Any], path: str) -> None:
    """Refuse what the parser takes for an empty message: an empty list, or a text without a character.

    Args:
        message: its descriptor.
    """
    for field in message.fields:
        inner = field.message_type
        if inner is None or inner.full_name.startswith(_OWN_JSON) or inner.GetOptions().map_entry:
            continue
        name = field.name if field.name in given else field.json_name
        value = given.get(name)
        values = value if field.is_repeated and isinstance(value, list) else [value]
        for i, each in enumerate(values):
            place = f"{path}{name}[{i}]" if field.is_repeated else f"{path}{name}"
            if isinstance(each, dict):
                _check_objects(inner, each, f"{place}.")
            elif each is not None:
                raise InvalidArgument(f"{place} is no object", field=place)


def _refused(error: Exception) -> InvalidArgument:
    """The parser's error in our words: where it is, and what is wrong there."""
    said = str(error).partition("\n")[0]
    outer = _IN_FIELD.findall(said)
    why = _IN_FIELD.sub("", said)
    if unknown := _UNKNOWN.search(why):
        field = ".".join([*outer, unknown[1]])[:_SHOWN]
        return InvalidArgument(f"there is no field {field}", field=field)
    place = _PLACE.search(why)
    field = (place[1] if place and place[1] else ".".join(outer))[:_SHOWN]
    why = _PLACE.sub("", why)[:_SHOWN].rstrip(".")
    return InvalidArgument(f"{field or 'the body'}: {why[:1].lower()}{why[1:]}", field=field)
