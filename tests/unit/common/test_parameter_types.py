"""Types of a function's parameters, as grammars and readers of answers know them."""

from __future__ import annotations

from typing import Any

import pytest

from inferflux.common.text.constraints.answers.schemas import Root, parameter_types


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, "integer"),
        ({"type": ["string", "null"]}, "string,null"),
        (
            {"anyOf": [{"type": "number"}, {"oneOf": [{"type": "null"}, {"const": "auto"}]}]},
            "number,null,string",
        ),
        ({"enum": ["a", 1, None]}, "string,integer,null"),
        ({"allOf": [{"type": "boolean"}]}, "boolean"),
        (ref("name"), "string"),
        ({"anyOf": [ref("name"), {}]}, ""),
        (True, ""),
        ({"description": "any"}, ""),
    ],
)
def test_types_are_those_that_the_schema_allows(schema: Any, types: str) -> None:
    whole = {"properties": {"x": schema}, "$defs": {"name": {"type": "string"}}}
    assert parameter_types(whole) == {"x": types}


_TWO = {f"a{i}": {"anyOf": [ref(f"a{i + 1}"), ref(f"a{i + 1}")]} for i in range(100)}


@pytest.mark.parametrize(
    ("definitions", "types"),
    [
        ({"a0": {"anyOf": [ref("a0"), ref("a0")]}}, ""),
        ({"a0": {"anyOf": [{"type": "string"}, ref("b"), ref("b")]}, "b": {"anyOf": [ref("a0"), True]}}, ""),
        ({"a0": {"anyOf": [{"type": "null"}, ref("b")]}, "b": {"oneOf": [ref("a0"), ref("b")]}}, "null"),
        ({"a0": {"allOf": [ref("b")] * 3}, "b": {"allOf": [ref("a0"), ref("a0"), {"type": "null"}]}}, "null"),
        ({**_TWO, "a100": {"type": "integer"}}, "integer"),
    ],
)
def test_references_that_meet_again_take_no_more_time(definitions: dict[str, Any], types: str) -> None:
    assert parameter_types({"properties": {"x": ref("a0")}, "$defs": definitions}) == {"x": types}


def test_of_too_many_alternatives_the_rest_is_anything() -> None:
    level = {"anyOf": [{"minLength": 1, **ref("b")}, {"maxLength": 2, **ref("b")}]}
    definitions: dict[str, Any] = {"b": {"type": "string"}, "a": level}
    for i in range(20):
        of = ref(f"a{i - 1}") if i else ref("a")
        definitions[f"a{i}"] = {"anyOf": [{f"x{i}": 1, **of}, of]}
    found = [*Root({"$defs": definitions}).alternatives(ref("a19"))]
    assert 1 < len(found) <= 10_000
    assert found[-1] == {}
