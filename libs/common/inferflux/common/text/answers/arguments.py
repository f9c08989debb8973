"""Arguments of calls as JSON text, from what models write (pure)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from inferflux.common.contract.requests.answer_spelling import ObjectForm
from inferflux.v1 import generation_pb2

from .literals import read_gemma, read_json, read_keywords

_TAG = re.compile(r"<(/?)([^<>\s]+)>")


def dumped(value: Any) -> str:
    """JSON text that a protobuf string can hold.

    Raises:
        ValueError: it has a number that JSON has not.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(value, allow_nan=False)
    return text


def arguments_of(
    text: str, style: generation_pb2.ArgumentStyle.ValueType = generation_pb2.ARGUMENT_STYLE_JSON
) -> str | None:
    """A call's arguments as they are written: JSON with its brackets, other styles behind the opening one.
    None if they are none."""
    try:
        if style == generation_pb2.ARGUMENT_STYLE_PYTHON:
            return dumped(read_keywords(text[:-1]))
        if style == generation_pb2.ARGUMENT_STYLE_GEMMA:
            return dumped(read_gemma("{" + text))
        value = read_json(text)
        return _spelled(text, value) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


def _spelled(text: str, value: Any) -> str:
    """The text itself where it is JSON."""
    try:
        json.loads(text)
        text.encode()
    except ValueError:
        return dumped(value)
    return text


def call_of(text: str, form: ObjectForm, names: Collection[str]) -> tuple[str, str, str] | None:
    """Name, id and arguments of a call that is an object, as a model may write it; None if it is none."""
    try:
        call = _object_of(text)
        inner = call.get("function", call.get("tool_call"))
        if isinstance(inner, dict):
            call = {**call, **inner}
        name: Any
        if form.is_keyed_by_name and len(call) == 1:
            [(name, arguments)] = call.items()
        else:
            name = next((call[key] for key in form.name_keys if isinstance(call.get(key), str)), None)
            arguments = next((call[key] for key in form.argument_keys if key in call), {})
        if isinstance(arguments, str):
            arguments = read_json(arguments or "{}")
        if arguments is None:
            arguments = {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return None
        name = name if name in names else name.removeprefix("functions.")
        found = next((str(call[key]) for key in form.id_keys if key in call), "")
        return (name, found, dumped(arguments)) if name in names else None
    except (ValueError, RecursionError):
        return None


def _object_of(text: str) -> dict[str, Any]:
    """An object; also one in double braces."""
    try:
        value = read_json(text)
    except ValueError:
        if not (text.startswith("{{") and text.endswith("}}")):
            raise
        value = read_json(text[1:-1])
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


def typed(text: str, kinds: str) -> Any:
    """A parameter's value.

    Args:
        kinds: JSON types that its schema allows, with commas between them; empty: any.
    """
    if text.startswith("<![CDATA[") and text.endswith("]]>"):
        text = text[9:-3]
    known = kinds.split(",") if kinds else []
    if known == ["string"]:
        return text
    try:
        value = read_json(text.strip())
    except (ValueError, RecursionError):
        return text
    if not known or _kind_of(value) in known or (_kind_of(value) == "integer" and "number" in known):
        return value
    if isinstance(value, float) and value.is_integer() and "integer" in known:
        return int(value)
    return text if "string" in known else value


def _kind_of(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def unnested(text: str, parameter: str, types: Mapping[str, str]) -> str | None:
    """Arguments of tags within tags, the outer ones being parameters; None if they are none.

    Args:
        parameter: how one is written; what comes before `<$key>` marks every tag.
    """
    mark = parameter.partition("<$key>")[0].strip()
    tokens = text.split(mark) if mark else [text]
    root: list[tuple[str, Any]] = []
    stack: list[tuple[str, list[tuple[str, Any]], list[str]]] = [("", root, [])]
    for token in tokens:
        found = _TAG.match(token)
        if found is None:
            stack[-1][2].append(token)
            continue
        rest = token[found.end() :]
        if not found[1]:
            stack.append((found[2], [], [rest]))
            continue
        name, inner, words = stack.pop()
        if name != found[2] or not stack:
            return None
        kinds = types.get(name, "string") if len(stack) == 1 else ""
        stack[-1][1].append((name, _nested_value(inner, "".join(words), kinds)))
        stack[-1][2].append(rest)
    return dumped(dict(root)) if len(stack) == 1 else None


def _nested_value(inner: list[tuple[str, Any]], text: str, kinds: str) -> Any:
    if not inner:
        has_words = bool(text.strip() if kinds else text)
        if not has_words and "string" not in kinds.split(","):
            return [] if kinds == "array" else {} if kinds == "object" else None
        return typed(text, kinds)
    if all(name == "item" for name, _ in inner):
        return [value for _, value in inner]
    return dict(inner)
