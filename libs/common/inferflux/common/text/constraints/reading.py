"""A schema's text as JSON, and its keywords as draft 2020-12 has them (pure)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final

from inferflux.common.contract.errors import InvalidArgument

FIELD = "params.constraint.json_schema"

# Of JSON texts in a schema; far below what the parsers of any of the processes take.
MAX_DEPTH = 64

Json = Any
# A keyword, its value, and the name under which the text has it.
Keyword = tuple[str, Json, str]

_DRAFT: Final = re.compile(r"json-schema\.org/draft-0?(\d)/")
_NEWEST: Final = 2020
_EXCLUSIVE: Final = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
_BOUNDS: Final = frozenset({*_EXCLUSIVE, *_EXCLUSIVE.values()})


def parsed(text: str) -> Json:
    """The value of a schema's text.

    Raises:
        InvalidArgument: it is no JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise bad(f"it is nested deeper than {MAX_DEPTH}", "#") from None
    except ValueError as error:
        raise bad(f"it is not JSON: {error}", "#") from None


def bad(why: str, path: str) -> InvalidArgument:
    """The error of a schema that is none."""
    return InvalidArgument(f"the schema cannot be used: at {path}: {why}", field=FIELD, reason="BAD_SCHEMA")


def draft_of(document: Json) -> int:
    """The number of the draft that a schema says it is written in; 2020 where it says none that is known."""
    said = document.get("$schema") if isinstance(document, dict) else None
    found = _DRAFT.search(said) if isinstance(said, str) else None
    return int(found[1]) if found else _NEWEST


def keywords(schema: dict[str, Json], draft: int) -> Iterator[Keyword]:
    """The keywords of a schema, in its order; those of older drafts and of OpenAPI under today's names."""
    if draft <= 7 and "$ref" in schema:
        yield "$ref", schema["$ref"], "$ref"
        return
    for name, value in schema.items():
        if name in _BOUNDS:
            yield from _bound(schema, name, value)
        elif name in ("items", "additionalItems", "prefixItems"):
            yield from _items(schema, name, value)
        elif name == "dependencies":
            yield from _dependencies(value, name)
        elif name in ("$recursiveRef", "$dynamicRef"):
            if "$ref" not in schema:
                yield "$ref", value, name
        elif name == "type" and schema.get("nullable") is True:
            names = value if isinstance(value, list) else [value]
            yield name, names if "null" in names else [*names, "null"], name
        elif name != "required" or not isinstance(value, bool):  # which is draft 3's
            yield name, value, name


def _bound(schema: dict[str, Json], name: str, value: Json) -> Iterator[Keyword]:
    """Draft 4 says with `true` that a bound is exclusive."""
    exclusive = _EXCLUSIVE.get(name, "")
    if schema.get(exclusive) is True:
        yield exclusive, value, name
    elif exclusive or not isinstance(value, bool):
        yield name, value, name


def _items(schema: dict[str, Json], name: str, value: Json) -> Iterator[Keyword]:
    """Up to 2019-09 a tuple is a list of `items`, and what follows it `additionalItems`."""
    if not isinstance(schema.get("items"), list):
        if name != "additionalItems":
            yield name, value, name
    elif name != "prefixItems":
        yield "prefixItems" if name == "items" else "items", value, name


def _dependencies(value: Json, name: str) -> Iterator[Keyword]:
    if not isinstance(value, dict):
        yield "dependentSchemas", value, name
        return
    lists = {key: of for key, of in value.items() if isinstance(of, list)}
    if lists:
        yield "dependentRequired", lists, name
    if len(lists) < len(value):
        yield "dependentSchemas", {key: of for key, of in value.items() if key not in lists}, name


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
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
