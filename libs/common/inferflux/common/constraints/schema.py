"""A JSON schema as it is enforced: read, checked keyword by keyword, freed of what asserts nothing (pure).

Draft 2020-12. A keyword that is neither enforced nor an annotation is refused with the place where it stands:
what is ignored would give answers that do not match.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from inferflux.common.errors import InvalidArgument

from .patterns import MOST_CHARS, PatternError, portable

FIELD = "params.constraint.json_schema"

# Of JSON texts in a schema; far below what the parsers of any of the processes take.
MAX_DEPTH = 64

_Json: TypeAlias = Any

_TYPES: Final = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})

# Formats that are enforced.
FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)

# They say nothing about what is valid.
_ANNOTATIONS: Final = frozenset(
    {
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "$schema",
        "discriminator",
    }
)

_LARGEST = 2**53
# llguidance takes a bound that is nearer to 0 for 0.
_NEAREST_TO_ZERO = 1e-15


def normalised(text: str) -> str:
    """The schema of a request, as compact JSON.

    Raises:
        InvalidArgument: it is no schema, or one that cannot be enforced.
    """
    schema = _parsed(text)
    walk = _Walk()
    result = walk.schema(schema, "#", 0)
    walk.check_references()
    if isinstance(result, bool):  # llguidance's options belong to an object
        if not result:
            raise _bad("nothing matches it", "#")
        result = {}
    compact = json.dumps(result, separators=(",", ":"), ensure_ascii=False)
    try:
        compact.encode()
    except UnicodeEncodeError:
        raise _bad("a text has half of a surrogate pair", "#") from None
    return compact


def _parsed(text: str) -> _Json:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise _bad(f"it is nested deeper than {MAX_DEPTH}", "#") from None
    except ValueError as error:
        raise _bad(f"it is not JSON: {error}", "#") from None


def _unique(pairs: list[tuple[str, _Json]]) -> dict[str, _Json]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("an object has the same key twice")
    return result


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text} is too large")
    return number


def _bad(why: str, path: str) -> InvalidArgument:
    return InvalidArgument(f"the schema cannot be used: at {path}: {why}", field=FIELD, reason="BAD_SCHEMA")


def _unsupported(what: str, path: str) -> InvalidArgument:
    message = f"the schema cannot be enforced: at {path}: {what} is not supported"
    return InvalidArgument(message, field=FIELD, reason="UNSUPPORTED_SCHEMA")


class _Walk:
    """One pass over a schema; every method returns what is kept of what it is given."""

    def __init__(self) -> None:
        self._schemas: set[str] = set()
        # Each with the place that has it.
        self._references: list[tuple[str, str]] = []
        # That all patterns together may have still.
        self._pattern_chars = MOST_CHARS

    def schema(self, value: _Json, path: str, depth: int) -> _Json:
        if depth > MAX_DEPTH:
            raise _bad(f"it is nested deeper than {MAX_DEPTH}", path)
        self._schemas.add(path)
        if isinstance(value, bool):
            return value
        if not isinstance(value, dict):
            raise _bad("a schema is an object, true or false", path)
        kept = {}
        for name, of_name in value.items():
            if name in _ANNOTATIONS or (name == "$id" and path == "#"):
                continue
            if name == "uniqueItems" and of_name is False:
                continue
            check = _KEYWORDS.get(name)
            if check is None:
                raise _unsupported(f"the keyword {name[:64]!r}", path)
            kept[name] = check(self, of_name, f"{path}/{_escaped(name)}", depth + 1)
        _check_least_properties(kept, path)
        return kept

    def check_references(self) -> None:
        """Raises InvalidArgument for one to what is no schema of this text."""
        for reference, path in self._references:
            if not reference.startswith("#"):
                raise _unsupported("a reference to another document", path)
            if unquote(reference) not in self._schemas:
                raise _bad(f"{reference[:64]!r} is no schema of it", path)

    def schemas(self, value: _Json, path: str, depth: int) -> _Json:
        """Schemas by name."""
        if not isinstance(value, dict):
            raise _bad("it is no object", path)
        return {name: self.schema(of, f"{path}/{_escaped(name)}", depth + 1) for name, of in value.items()}

    def list_of_schemas(self, value: _Json, path: str, depth: int) -> _Json:
        if not isinstance(value, list) or not value:
            raise _bad("it is no list of schemas", path)
        return [self.schema(of, f"{path}/{i}", depth + 1) for i, of in enumerate(value)]

    def items(self, value: _Json, path: str, depth: int) -> _Json:
        if isinstance(value, list):
            raise _unsupported("a list of items (say prefixItems)", path)
        return self.schema(value, path, depth)

    def reference(self, value: _Json, path: str, _depth: int) -> _Json:
        text = self.text(value, path, 0)
        self._references.append((text, path))
        return text

    def types(self, value: _Json, path: str, _depth: int) -> _Json:
        names = value if isinstance(value, list) else [value]
        for name in names:
            if not isinstance(name, str) or name not in _TYPES:
                raise _bad(f"there is no type {str(name)[:64]!r}", path)
        if not names or len(set(names)) < len(names):
            raise _bad("it lists no type, or one twice", path)
        return value

    def text(self, value: _Json, path: str, _depth: int) -> _Json:
        if not isinstance(value, str):
            raise _bad("it is no text", path)
        return value

    def pattern(self, value: _Json, path: str, _depth: int) -> _Json:
        try:
            read = portable(self.text(value, path, 0), most_chars=self._pattern_chars)
        except PatternError as error:
            raise _unsupported(f"{error} in a pattern", path) from None
        self._pattern_chars -= len(read)
        return read

    def schemas_by_pattern(self, value: _Json, path: str, depth: int) -> _Json:
        kept = {}
        for name, of in self.schemas(value, path, depth).items():
            pattern = self.pattern(name, f"{path}/{_escaped(name)}", 0)
            if pattern in kept:
                raise _unsupported("a pattern that says the same as another", f"{path}/{_escaped(name)}")
            kept[pattern] = of
        return kept

    def format(self, value: _Json, path: str, _depth: int) -> _Json:
        if self.text(value, path, 0) not in FORMATS:
            raise _unsupported(f"the format {value[:64]!r}", path)
        return value

    def names(self, value: _Json, path: str, _depth: int) -> _Json:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise _bad("it is no list of texts", path)
        return list(dict.fromkeys(value))

    def count(self, value: _Json, path: str, _depth: int) -> _Json:
        is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
        if not is_whole or not 0 <= value < 2**31:
            raise _bad("it is no whole number from 0 to 2147483647", path)
        return int(value)

    def number(self, value: _Json, path: str, _depth: int) -> _Json:
        if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > _LARGEST:
            raise _bad(f"it is no number from -{_LARGEST} to {_LARGEST}", path)
        if 0 < abs(value) < _NEAREST_TO_ZERO:
            raise _bad(f"it is nearer to 0 than {_NEAREST_TO_ZERO:g}", path)
        return value

    def factor(self, value: _Json, path: str, _depth: int) -> _Json:
        if self.number(value, path, 0) <= 0:
            raise _bad("it is not above 0", path)
        return value

    def values(self, value: _Json, path: str, depth: int) -> _Json:
        if not isinstance(value, list) or not value:
            raise _bad("it is no list of values", path)
        return [self.value(one, path, depth) for one in value]

    def value(self, value: _Json, path: str, depth: int) -> _Json:
        """Any JSON. Numbers have the range of bounds: llguidance makes bounds of them."""
        if depth > MAX_DEPTH:
            raise _bad(f"it is nested deeper than {MAX_DEPTH}", path)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self.number(value, path, depth)
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        for one in inside:
            self.value(one, path, depth + 1)
        return value


_KEYWORDS: Final[dict[str, Callable[[_Walk, _Json, str, int], _Json]]] = {
    "$ref": _Walk.reference,
    "$defs": _Walk.schemas,
    "definitions": _Walk.schemas,
    "type": _Walk.types,
    "const": _Walk.value,
    "enum": _Walk.values,
    "anyOf": _Walk.list_of_schemas,
    "allOf": _Walk.list_of_schemas,
    "oneOf": _Walk.list_of_schemas,
    "properties": _Walk.schemas,
    "patternProperties": _Walk.schemas_by_pattern,
    "additionalProperties": _Walk.schema,
    "required": _Walk.names,
    "minProperties": _Walk.count,
    "maxProperties": _Walk.count,
    "items": _Walk.items,
    "prefixItems": _Walk.list_of_schemas,
    "minItems": _Walk.count,
    "maxItems": _Walk.count,
    "minLength": _Walk.count,
    "maxLength": _Walk.count,
    "pattern": _Walk.pattern,
    "format": _Walk.format,
    "minimum": _Walk.number,
    "maximum": _Walk.number,
    "exclusiveMinimum": _Walk.number,
    "exclusiveMaximum": _Walk.number,
    "multipleOf": _Walk.factor,
}

KEYWORDS: Final = frozenset(_KEYWORDS)
"""Those that are enforced."""


def _check_least_properties(schema: dict[str, _Json], path: str) -> None:
    """An answer may repeat a name that `properties` does not have; readers keep one of them.

    So of the names that are not required one alone is certain to come, unless `properties` has them all.

    Raises:
        InvalidArgument: more are asked for.
    """
    has_all_names = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    certain = len(schema.get("required", ())) + 1
    if not has_all_names and schema.get("minProperties", 0) > certain:
        what = f"a number above {certain}, where names that are not listed may come twice,"
        raise _unsupported(what, f"{path}/minProperties")


def _escaped(name: str) -> str:
    """A name in a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
