"""The part of a schema that masks of tokens can hold, in the form that llguidance takes (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from .disjoint import Disjoint
from .formats import EXPRESSIONS, FORMATS
from .patterns import portable

Json = Any
Object = dict[str, Json]

LARGEST: Final = 2**53
NEAREST_TO_ZERO: Final = 1e-15
"""llguidance takes a bound that is nearer to 0 for 0."""

_MOST_ITEMS = 1000
_MOST_LENGTH = 100_000
# Of properties of which at least, or at most, one has to come: alternatives for each.
_MOST_OPTIONAL = 32
_MOST_DEPENDENT = 3
# From level 1 on, larger counts are left to the check.
_SMALL = 64

_APPLIED: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas"})
_BOUNDS: Final = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


class Narrowing:
    """Makes what is enforced out of what is checked, schema by schema, from the innermost outwards.

    Args:
        level: see `schema.LEVELS`.
        leave: is told each keyword that is not enforced, and the path of its schema.
    """

    def __init__(self, level: int, leave: Callable[[str, str], None]) -> None:
        self._level = level
        self._leave = leave
        # Those with `oneOf`, as they are checked, with their paths.
        self._choices: list[tuple[Object, str]] = []

    def narrowed(self, schema: Object, checked: Object, path: str) -> Json:
        """Return what masks hold of a schema.

        Args:
            schema: its keywords, with what masks hold of the schemas inside; it is used up. A pattern that
                they cannot hold is None.
            checked: as a complete answer is checked against it.
        """
        if schema.get("enum") == [] or checked.get("not") in (True, {}):
            return False
        self._scalars(schema, path)
        self._arrays(schema, path)
        self._objects(schema, path)
        self._conditions(schema, checked, path)
        return self._combined(schema, checked, path)

    def find_overlaps(self, definitions: Mapping[str, Json]) -> None:
        """Leave each `oneOf` whose alternatives may hold together: masks let through what matches any."""
        disjoint = Disjoint(definitions)
        for checked, path in self._choices:
            if not disjoint.are_all(checked["oneOf"], checked):
                self._leave("oneOf", path)

    def root(self, schema: Json) -> Json:
        """The whole schema, as `level` says."""
        if self._level < 3 or not isinstance(schema, dict):
            return schema
        for name in schema:
            if name not in ("type", "$defs"):
                self._leave(name, "#")
        return {"type": schema["type"]} if "type" in schema else {}

    def _drop(self, schema: Object, path: str, *names: str) -> None:
        for name in names:
            if name in schema:
                del schema[name]
                self._leave(name, path)

    def _scalars(self, schema: Object, path: str) -> None:
        for name in _BOUNDS:
            if name in schema:
                self._bound(schema, name, path)
        if not NEAREST_TO_ZERO <= schema.get("multipleOf", 1) <= LARGEST:
            self._drop(schema, path, "multipleOf")
        for name in ("const", "enum"):
            if name in schema and not _is_in_range(schema[name]):
                self._drop(schema, path, name)
        if schema.get("pattern", "") is None or self._level:
            self._drop(schema, path, "pattern")
        if schema.get("format", "date") not in FORMATS:
            self._drop(schema, path, "format")
        if (expression := EXPRESSIONS.get(schema.get("format", ""))) is not None:
            del schema["format"]
            if "pattern" in schema:
                schema["allOf"] = [*schema.get("allOf", ()), {"pattern": expression}]
            else:
                schema["pattern"] = expression
        for name in ("minLength", "maxLength"):
            if schema.get(name, 0) > (_SMALL if self._level else _MOST_LENGTH):
                self._drop(schema, path, name)

    def _bound(self, schema: Object, name: str, path: str) -> None:
        """One beyond ±2^53 becomes that, unless it is beyond the other end of numbers."""
        value = schema[name]
        is_least = name in ("minimum", "exclusiveMinimum")
        if abs(value) > LARGEST:
            if (value > 0) is is_least:
                self._drop(schema, path, name)
            else:
                del schema[name]
                schema["minimum" if is_least else "maximum"] = -LARGEST if is_least else LARGEST
        elif 0 < abs(value) < NEAREST_TO_ZERO:
            self._drop(schema, path, name)

    def _arrays(self, schema: Object, path: str) -> None:
        for name in ("minItems", "maxItems"):
            if schema.get(name, 0) > (_SMALL if self._level else _MOST_ITEMS):
                self._drop(schema, path, name)
        if schema.pop("uniqueItems", False) and schema.get("maxItems", 2) > 1:
            self._leave("uniqueItems", path)
        least, most = schema.pop("minContains", 1), schema.pop("maxContains", None)
        if "contains" in schema:
            del schema["contains"]
            if least > 0 or most is not None:
                self._leave("contains", path)
        if "unevaluatedItems" in schema:
            value = schema.pop("unevaluatedItems")
            if "items" in schema or value is True:
                return
            if _APPLIED & schema.keys():
                self._leave("unevaluatedItems", path)
            else:
                schema["items"] = value

    def _objects(self, schema: Object, path: str) -> None:
        if "unevaluatedProperties" in schema:
            value = schema.pop("unevaluatedProperties")
            if "additionalProperties" not in schema and value is not True:
                if _APPLIED & schema.keys():
                    self._leave("unevaluatedProperties", path)
                else:
                    schema["additionalProperties"] = value
        if "patternProperties" in schema and (schema["patternProperties"] is None or self._level):
            self._drop(schema, path, "patternProperties")
            if schema.get("additionalProperties", True) is not True:
                self._drop(schema, path, "additionalProperties")
        if "propertyNames" in schema:
            self._property_names(schema, path)
        if "minProperties" in schema or "maxProperties" in schema:
            self._property_counts(schema, path)

    def _property_names(self, schema: Object, path: str) -> None:
        names = schema.pop("propertyNames")
        if names is True or not isinstance(names, dict):
            if names is False:
                schema |= {"properties": {}, "additionalProperties": False}
            return
        names = {name: of for name, of in names.items() if name != "type"}
        if not names:
            return
        value = schema.get("additionalProperties", True)
        allowed = [names["const"]] if "const" in names else names.get("enum")
        is_open = not {"properties", "patternProperties"} & schema.keys()
        if not is_open or self._level or (allowed is None and value is False):
            self._leave("propertyNames", path)
        elif allowed is not None and len(names) == 1:
            schema["properties"] = {name: value for name in allowed if isinstance(name, str)}
            schema["additionalProperties"] = False
        elif (pattern := _pattern_of(names)) is not None:
            schema |= {"patternProperties": {pattern: value}, "additionalProperties": False}
        else:
            self._leave("propertyNames", path)

    def _property_counts(self, schema: Object, path: str) -> None:
        """llguidance counts only what is not listed, or one of what is.

        An answer may repeat a name that `properties` does not have; readers keep one of them. So of the names
        that are not required one alone is certain to come, unless `properties` has them all.
        """
        required = set(schema.get("required", ()))
        listed = schema.get("properties", {}).keys()
        n_optional = len(listed - required)
        is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
        if schema.get("minProperties", 0) <= len(required):
            schema.pop("minProperties", None)
        if is_closed and schema.get("maxProperties", 0) >= len(listed | required):
            schema.pop("maxProperties", None)
        least = schema.get("minProperties", 0) - len(required)
        most = schema.get("maxProperties", len(required) + 1) - len(required)
        is_held = least <= 1 or is_closed
        if n_optional:
            is_held = is_closed and least <= 1 and most == 1 and n_optional <= _MOST_OPTIONAL
        if self._level or not is_held:
            self._drop(schema, path, "minProperties", "maxProperties")

    def _conditions(self, schema: Object, checked: Object, path: str) -> None:
        is_object = schema.get("type") == "object"
        schema.pop("not", None)
        denied = checked.get("not", False)
        if denied is not False:
            absent = denied.get("required", ()) if isinstance(denied, dict) and len(denied) == 1 else ()
            if is_object and len(absent) == 1:
                schema["properties"] = schema.get("properties", {}) | dict.fromkeys(absent, False)
            else:
                self._leave("not", path)
        schema.pop("then", None)
        schema.pop("else", None)
        if schema.pop("if", None) is not None and {"then", "else"} & checked.keys():
            self._leave("if", path)
        self._drop(schema, path, "dependentSchemas")
        needed = schema.pop("dependentRequired", {})
        if not needed:
            return
        if not is_object or len(needed) > _MOST_DEPENDENT or self._level:
            self._leave("dependentRequired", path)
            return
        either = [
            {"anyOf": [{"type": "object", "properties": {name: False}}, _requiring([name, *others])]}
            for name, others in needed.items()
        ]
        schema["allOf"] = [*schema.get("allOf", ()), *either]

    def _combined(self, schema: Object, checked: Object, path: str) -> Json:
        """Alternatives and conjunctions; `oneOf` becomes `anyOf`."""
        if "oneOf" in schema:
            self._choices.append((checked, path))
            if "anyOf" in schema:
                schema["allOf"] = [*schema.get("allOf", ()), {"anyOf": schema.pop("oneOf")}]
            else:
                schema = {"anyOf" if name == "oneOf" else name: of for name, of in schema.items()}
        if any(one in (True, {}) for one in schema.get("anyOf", ())):
            del schema["anyOf"]
        if "allOf" in schema:
            schema["allOf"] = [one for one in schema["allOf"] if one not in (True, {})]
            if not schema["allOf"]:
                del schema["allOf"]
        if self._level >= 2:
            found = [name for name in ("allOf", "anyOf", "$ref") if name in schema]
            if len(found) < len(schema):
                self._drop(schema, path, *found)
            else:
                self._drop(schema, path, *found[1:])
        return schema


def _requiring(names: list[str]) -> Object:
    return {"type": "object", "required": list(dict.fromkeys(names))}


def _pattern_of(names: Object) -> str | None:
    """The expression of the names that a schema of strings takes; None if it has more to say."""
    if names.keys() == {"pattern"}:
        pattern = names["pattern"]
        return pattern if isinstance(pattern, str) else None
    if names.keys() <= {"minLength", "maxLength"}:
        most = names.get("maxLength", "")
        return portable(f"^[\\s\\S]{{{names.get('minLength', 0)},{most}}}$")
    return None


def _is_in_range(value: Json) -> bool:
    if isinstance(value, bool):
        return True
    if isinstance(value, int | float):
        return value == 0 or NEAREST_TO_ZERO <= abs(value) <= LARGEST
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(_is_in_range, inside))
