"""Disjointness of two schemas: no value matches both, as far as their text shows it (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

Json = Any

_ALL: Final = frozenset({"null", "boolean", "object", "array", "number", "string"})
_MOST_STEPS = 20_000
_MOST_DEPTH = 12
_KINDS: Final = {
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


class Disjoint:
    """Compares schemas of one text.

    Args:
        definitions: what is referred to, by name in `$defs`.
    """

    def __init__(self, definitions: Mapping[str, Json]) -> None:
        self._definitions = definitions
        self._left = _MOST_STEPS

    def are_all(self, schemas: Sequence[Json], beside: Mapping[str, Json]) -> bool:
        """Return whether every two of them are.

        Args:
            beside: the schema that they are alternatives of, which holds for all.
        """
        required = frozenset(beside.get("required", ()))
        if all(_constants_of(one) is not None for one in schemas):
            return _differ(schemas)
        if self._are_tagged([self._resolved(one) for one in schemas], required):
            return True
        return all(
            self._are(one, other, required, 0) for i, one in enumerate(schemas) for other in schemas[i + 1 :]
        )

    def _are_tagged(self, schemas: Sequence[Json], required: frozenset[str]) -> bool:
        """Return whether a name that all require has other constants in each."""
        if not all(isinstance(one, dict) and _types_of(one) == {"object"} for one in schemas):
            return False
        names = [required | set(one.get("required", ())) for one in schemas]
        return any(
            _differ([self._resolved(_property(one, name)) for one in schemas])
            for name in sorted(frozenset.intersection(*names))
        )

    def _are(self, one: Json, other: Json, required: frozenset[str], depth: int) -> bool:
        self._left -= 1
        if self._left < 0 or depth > _MOST_DEPTH:
            return False
        one, other = self._resolved(one), self._resolved(other)
        if one is False or other is False:
            return True
        if not isinstance(one, dict) or not isinstance(other, dict):
            return False
        for pair in ((one, other), (other, one)):
            for name in ("anyOf", "oneOf"):
                if name in pair[0]:
                    inherited = required | set(pair[0].get("required", ()))
                    if all(self._are(part, pair[1], inherited, depth + 1) for part in pair[0][name]):
                        return True
            if any(self._are(part, pair[1], required, depth + 1) for part in pair[0].get("allOf", ())):
                return True
        both = _types_of(one) & _types_of(other)
        if not both:
            return True
        values, others = _constants_of(one), _constants_of(other)
        if values is not None and others is not None:
            return not values & others
        if both == {"number"}:
            return _is_below(one, other) or _is_below(other, one)
        return both == {"object"} and self._are_objects(one, other, required, depth)

    def _are_objects(
        self, one: dict[str, Json], other: dict[str, Json], required: frozenset[str], depth: int
    ) -> bool:
        """Return whether a name that comes in any case cannot have what both say of it."""
        names = required | set(one.get("required", ())) | set(other.get("required", ()))
        return any(
            self._are(_property(one, name), _property(other, name), frozenset(), depth + 1) for name in names
        )

    def _resolved(self, schema: Json) -> Json:
        for _ in range(_MOST_DEPTH):
            if not isinstance(schema, dict) or schema.keys() != {"$ref"}:
                return schema
            schema = self._definitions.get(schema["$ref"].rpartition("/")[2], {})
        return {}


def _property(schema: Mapping[str, Json], name: str) -> Json:
    listed = schema.get("properties", {})
    if name in listed:
        return listed[name]
    return True if schema.get("patternProperties") else schema.get("additionalProperties", True)


def _types_of(schema: Mapping[str, Json]) -> frozenset[str]:
    said = schema.get("type", sorted(_ALL))
    types = {"number" if name == "integer" else name for name in ([said] if isinstance(said, str) else said)}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        types &= {_KINDS.get(type(value), "null") for value in values}
    return frozenset(types)


def _constants_of(schema: Json) -> frozenset[str] | None:
    """The values that a schema lists, each as JSON; None if it lists none."""
    if not isinstance(schema, dict):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return None if values is None else frozenset(map(_spelled, values))


def _differ(schemas: Sequence[Json]) -> bool:
    """Return whether each lists values, and no two the same."""
    constants = [_constants_of(one) for one in schemas]
    found = [value for values in constants for value in values or ()]
    return all(values is not None for values in constants) and len(set(found)) == len(found)


def _spelled(value: Json) -> str:
    """Equal values alike: 1 and 1.0 are."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _is_below(one: Mapping[str, Json], other: Mapping[str, Json]) -> bool:
    most = min(one.get(name, float("inf")) for name in ("maximum", "exclusiveMaximum"))
    least = max(other.get(name, float("-inf")) for name in ("minimum", "exclusiveMinimum"))
    return most < least or (most == least and ("exclusiveMaximum" in one or "exclusiveMinimum" in other))
