"""Parts of JSON schemas, as far as grammars that are not JSON's look at them (pure)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Schema: TypeAlias = Mapping[str, Any]

TYPES: Final = ("string", "integer", "number", "boolean", "null", "object", "array")
_DEEPEST = 32
_MOST_ALTERNATIVES = 10_000


@dataclass(frozen=True, slots=True)
class Object:
    """An object's properties: those that are required come first.

    Attributes:
        extra: of others; None: there are none.
    """

    properties: Mapping[str, Any]
    n_required: int
    extra: Any | None


class Root:
    """The schema of a function's arguments, to which references point."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def resolved(self, schema: Any) -> Schema:
        """A schema with its references and `allOf` put in. {} allows anything."""
        return self._resolved(schema, set())

    def _resolved(self, schema: Any, seen: set[str], depth: int = 0) -> Schema:
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return {}
        made = dict(schema)
        others = made.pop("allOf", [])
        pointer = made.get("$ref")
        if isinstance(pointer, str):
            del made["$ref"]
            if pointer not in seen:
                seen.add(pointer)
                others = [self._at(pointer), *others]
        for other in others:
            for key, value in self._resolved(other, seen, depth + 1).items():
                if key == "properties" and key in made:
                    made[key] = {**value, **made[key]}
                elif key == "required" and key in made:
                    made[key] = [*made[key], *value]
                else:
                    made.setdefault(key, value)
        return made

    def alternatives(self, schema: Any) -> Iterator[Schema]:
        """Schemas without `anyOf`, of which each has one type at most, and of which a value matches one.

        The same alternative comes once. Where there are too many, {} stands for those that are left.
        """
        left, seen, n_found = [schema], set[str](), 0
        while left:
            own = self.resolved(left.pop())
            text = json.dumps(own)
            if text in seen:
                continue
            seen.add(text)
            if len(seen) > _MOST_ALTERNATIVES:
                yield {}
                return
            unions = own.get("anyOf") or own.get("oneOf")
            if isinstance(unions, list) and not own.keys() & {"const", "enum"}:
                rest = {k: v for k, v in own.items() if k not in ("anyOf", "oneOf")}
                is_object = "properties" in rest
                left += [one if is_object else {**rest, **self.resolved(one)} for one in reversed(unions)]
                continue
            n_found += 1
            if "const" in own:
                yield {"enum": [own["const"]]}
            elif isinstance(own.get("type"), list) and "enum" not in own:
                for kind in own["type"]:
                    yield {**own, "type": kind}
            else:
                yield own
        if not n_found:  # it refers to nothing but itself
            yield {}

    def object_of(self, schema: Any) -> Object:
        own = self.resolved(schema)
        properties = own.get("properties", {})
        required = [name for name in dict.fromkeys(own.get("required", [])) if name in properties]
        order = [*required, *(name for name in properties if name not in required)]
        extra = own.get("additionalProperties", None if properties else {})
        extra = {} if extra is True else None if extra is False else extra
        return Object({name: properties[name] for name in order}, len(required), extra)

    def alone(self, schema: Any) -> Schema:
        """A schema as a whole of its own: what it refers to is in it."""
        if '"$ref"' not in json.dumps(schema):
            return schema if isinstance(schema, Mapping) else {}
        return {"$defs": {"root": _moved(self.schema)}, **_moved(schema)}

    def _at(self, pointer: str) -> Any:
        found: Any = self.schema
        for part in pointer.removeprefix("#").split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = found[int(key)] if key.isdigit() and int(key) < len(found) else {}
            else:
                found = found.get(key, {}) if isinstance(found, Mapping) else {}
        return found


def parameter_types(schema: Schema) -> dict[str, str]:
    """By parameter the JSON types that its schema allows, with commas between them; empty: any."""
    root = Root(schema)
    found = {}
    for name, each in root.resolved(schema).get("properties", {}).items():
        kinds = dict.fromkeys(kind for one in root.alternatives(each) for kind in types_of(one))
        found[name] = "" if len(kinds) == len(TYPES) else ",".join(kinds)
    return found


def types_of(schema: Schema) -> list[str]:
    """The types that a schema without alternatives allows."""
    if "enum" in schema:
        return list(dict.fromkeys(type_of(value) for value in schema["enum"]))
    kind = schema.get("type")
    return [kind] if isinstance(kind, str) else list(TYPES)


def type_of(value: Any) -> str:
    """JSON's name of a value's type."""
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case None:
            return "null"
        case list():
            return "array"
        case _:
            return "object"


def _moved(schema: Any) -> Any:
    """A schema whose references point to the whole one, which is in `$defs` now."""
    if isinstance(schema, Mapping):
        return {
            key: f"#/$defs/root{value[1:]}" if key == "$ref" and isinstance(value, str) else _moved(value)
            for key, value in schema.items()
        }
    return [_moved(one) for one in schema] if isinstance(schema, list) else schema
