"""JSON schemas as people write them, and random walks through what their masks allow."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from inferflux.common.llama.vocab import Vocab
from inferflux.common.text.constraints.compiling import Compiled

Schema = dict[str, Any] | bool


def obj(required: str = "", /, **properties: Schema) -> dict[str, Any]:
    """A closed object; `required` names those that must be there, all by default."""
    names = required.split() if required else list(properties)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def arr(items: Schema, least: int = 0, most: int = 3, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most, **more}


def text(most: int = 12, **more: Any) -> Schema:
    return {"type": "string", "maxLength": most, **more}


def like(pattern: str) -> Schema:
    return {"type": "string", "pattern": pattern}


def one_of(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


INT: Schema = {"type": "integer"}
BOOL: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
NUMBER: Schema = {"type": "number"}
SMALL: Schema = {"type": "integer", "minimum": 0, "maximum": 150}


def _scalars() -> dict[str, Schema]:
    bounds: list[dict[str, Any]] = [
        {"minimum": 0},
        {"maximum": -5},
        {"minimum": -3, "maximum": 3},
        {"exclusiveMinimum": 0, "exclusiveMaximum": 2},
        {"minimum": 99, "maximum": 1001},
        {"multipleOf": 5, "minimum": 0, "maximum": 100},
        {"exclusiveMinimum": 7, "maximum": 2_000_000_000},
    ]
    found: dict[str, Schema] = {f"integer {b}": {"type": "integer", **b} for b in bounds}
    found |= {f"number {b}": {"type": "number", **b} for b in bounds}
    found |= {
        f"number {b}": {"type": "number", **b}
        for b in ({"minimum": 0.5, "maximum": 0.75}, {"multipleOf": 0.01})
    }
    lengths = [(0, 0), (1, 1), (2, 5), (0, 30), (10, 10)]
    found |= {f"text {a}-{b}": {"type": "string", "minLength": a, "maxLength": b} for a, b in lengths}
    formats = ["date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
    found |= {f"format {f}": {"type": "string", "format": f} for f in formats}
    patterns = [
        "^[a-z]{2,8}$",
        "^[A-Z]{2}[0-9]{4}$",
        "^\\d{3}-\\d{4}$",
        "^(red|green|blue)$",
        "^#[0-9a-fA-F]{6}$",
        "^\\w+@\\w+\\.(com|org)$",
        "^$",
        "^a?b?c?$",
        "[0-9]",
        "^\\S+$",
        "^.{3}$",
        '^[^"\\\\]{1,5}$',
        "^(ab|cd){1,3}$",
        "^\\+?[1-9]\\d{1,14}$",
        "^v\\d+\\.\\d+\\.\\d+$",
        "^[\\u00e0-\\u00ff]{2}$",
        "^\\/[a-z\\/]*$",
        "^-?\\d+(\\.\\d+)?$",
        '^[^"<>]{1,4}$',
        "^[\\x00-!]$",
        "^.\\s$",
        "^[\\p{L}\\d -]{1,3}$",
        "^[a&&b[]$",
    ]
    found |= {f"pattern {p}": like(p) for p in patterns}
    found["pattern and length"] = {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 4}
    values: list[Any] = [
        1,
        -2.5,
        "a",
        'quo"te',
        "",
        True,
        None,
        [1, "x"],
        {"a": [1]},
        "日本",
        "new\nline",
        10**12,
    ]
    found |= {f"const {json.dumps(v)}": {"const": v} for v in values}
    found |= {
        "enum texts": {"enum": ["low", "medium", "high"]},
        "enum mixed": {"enum": [1, "1", None, True, [1], {"a": 1}]},
        "enum typed": {"type": "string", "enum": ["a", "b", "c"]},
        "enum beginnings": {"enum": ["a", "ab", "abc", "abcd"]},
        "enum many": {"enum": [f"option {i}" for i in range(300)]},
        "enum one": {"enum": ["only"]},
        "null": NULL,
        "boolean": BOOL,
        "integer": INT,
        "number": NUMBER,
        "text": text(),
        "any": True,
        "types": {"type": ["string", "null"], "maxLength": 5},
        "types 3": {"type": ["integer", "boolean", "null"]},
        "annotated": {"title": "T", "description": "D", "default": 3, "examples": [1], "type": "integer"},
    }
    return found


def _structures() -> dict[str, Schema]:
    person = obj(name=text(), age=SMALL)
    tree: Schema = {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"v": SMALL, "kids": arr({"$ref": "#/$defs/node"}, 0, 2)},
                "required": ["v"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    }
    linked: Schema = {
        "type": "object",
        "properties": {"next": one_of({"$ref": "#"}, NULL), "v": BOOL},
        "required": ["next", "v"],
        "additionalProperties": False,
    }
    expression: Schema = {
        "$defs": {
            "e": one_of(SMALL, obj(op={"enum": ["+", "-"]}, l={"$ref": "#/$defs/e"}, r={"$ref": "#/$defs/e"}))
        },
        "$ref": "#/$defs/e",
    }
    found: dict[str, Schema] = {
        "object empty": obj(),
        "object any": {"type": "object"},
        "person": person,
        "object optional": obj("a", a=INT, b=text(), c=BOOL),
        "object all optional": obj("", a=INT, b=BOOL) | {"required": []},
        "object open": {"type": "object", "properties": {"a": INT}, "required": ["a"]},
        "object extra typed": {"type": "object", "properties": {"a": INT}, "additionalProperties": SMALL},
        "object extra only": {"type": "object", "additionalProperties": BOOL},
        "object required unknown": {"type": "object", "required": ["x", "y"]},
        "object odd names": obj(
            **{"a b": INT, 'quo"te': BOOL, "日本": NULL, "": INT, "$ref": BOOL, "type": INT, "\n": INT}
        ),
        "object many": obj(**{f"field_{i}": SMALL for i in range(40)}),
        "object many optional": obj("field_3", **{f"field_{i}": BOOL for i in range(30)}),
        "pattern properties": {
            "type": "object",
            "patternProperties": {"^x-": INT, "^y-": BOOL},
            "additionalProperties": False,
        },
        "pattern properties beside": {
            "type": "object",
            "properties": {"id": INT},
            "patternProperties": {"^s_[a-z]+$": text()},
            "required": ["id"],
            "additionalProperties": False,
        },
        "min properties": {"type": "object", "additionalProperties": INT, "minProperties": 1},
        "min properties, one required": {
            "type": "object",
            "required": ["a"],
            "additionalProperties": INT,
            "minProperties": 2,
        },
        "max properties": {"type": "object", "additionalProperties": INT, "maxProperties": 2},
        "properties of any type": {"properties": {"a": INT}},
        "array any": {"type": "array", "maxItems": 3},
        "array": arr(SMALL),
        "array empty": arr(True, 0, 0),
        "array exact": arr(BOOL, 4, 4),
        "array of arrays": arr(arr(SMALL, 2, 2), 1, 2),
        "array of objects": arr(person, 1, 2),
        "array open": {"type": "array", "items": BOOL},
        "array at least": {"type": "array", "items": NULL, "minItems": 3},
        "tuple": {"type": "array", "prefixItems": [INT, text(), BOOL], "items": False, "minItems": 3},
        "tuple open": {"type": "array", "prefixItems": [INT, text()], "items": BOOL, "maxItems": 4},
        "tuple short": {"type": "array", "prefixItems": [INT, text()], "items": False},
        "any of": one_of(INT, text(), NULL),
        "any of objects": one_of(obj(a=INT), obj(b=text())),
        "any of nested": one_of(one_of(INT, BOOL), arr(one_of(NULL, text()))),
        "one of": {"oneOf": [{"type": "string", "maxLength": 4}, INT]},
        "one of tagged": {"oneOf": [obj(kind={"const": "a"}, x=SMALL), obj(kind={"const": "b"}, y=BOOL)]},
        "all of": {
            "allOf": [
                {"type": "object", "properties": {"a": INT}, "required": ["a"]},
                {"properties": {"b": BOOL}, "required": ["b"]},
            ]
        },
        "all of bounds": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
        "all of one": {"allOf": [person]},
        "ref": {"$defs": {"p": person}, "$ref": "#/$defs/p"},
        "ref and siblings": {
            "$defs": {"n": {"type": "integer"}},
            "$ref": "#/$defs/n",
            "minimum": 3,
            "maximum": 5,
        },
        "ref twice": {"$defs": {"p": person}, **obj(a={"$ref": "#/$defs/p"}, b={"$ref": "#/$defs/p"})},
        "ref definitions": {"definitions": {"p": person}, "$ref": "#/definitions/p"},
        "ref to a property": {
            "type": "object",
            "properties": {"a": SMALL, "b": {"$ref": "#/properties/a"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
        "ref escaped": {"$defs": {"a/b~c": BOOL}, "$ref": "#/$defs/a~1b~0c"},
        "ref chain": {
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/c"}, "c": SMALL},
            "$ref": "#/$defs/a",
        },
        "tree": tree,
        "linked": linked,
        "expression": expression,
        "deep": _nested(20),
        "unique false": arr(INT) | {"uniqueItems": False},
        "annotations": {
            "self": {"vendor": "com.example"},
            "id": "http://example.com/a",
            "type": "object",
            "x-kubernetes-list-type": "map",
            "properties": {"a": {"type": "integer", "format": "int32", "example": 3, "x-order": 1}},
            "required": ["a"],
            "additionalProperties": {},
        },
        "nullable": obj(a={"type": "integer", "nullable": True}),
        "draft 4": {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "integer",
            "minimum": 1,
            "exclusiveMinimum": True,
            "maximum": 5,
            "exclusiveMaximum": False,
        },
        "draft 4 ids": {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "id": "http://example.com/root.json",
            "definitions": {"a": {"id": "#a", "type": "integer", "maximum": 3, "minimum": 1}},
            **obj(one={"$ref": "#a"}, two={"$ref": "root.json#/definitions/a"}),
        },
        "draft 7 siblings of a reference": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"a": SMALL},
            **obj(one={"$ref": "#/definitions/a", "type": "string"}),
        },
        "draft 7 tuple": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "array",
            "items": [INT, BOOL],
            "additionalItems": False,
            "minItems": 2,
        },
        "anchor": {
            "$defs": {"p": {"$anchor": "here", "type": "integer", "maximum": 3}},
            **obj(a={"$ref": "#here"}),
        },
        "embedded id": {
            "$id": "https://example.com/s",
            "$defs": {"p": {"$id": "p", "$defs": {"q": SMALL}, "$ref": "#/$defs/q"}},
            **obj(a={"$ref": "p"}, b={"$ref": "https://example.com/s#/$defs/p/$defs/q"}),
        },
        "recursive reference": obj("v", v=SMALL, next=one_of(NULL, {"$recursiveRef": "#"})),
        "dynamic reference": {"$dynamicAnchor": "node", **obj("v", v=SMALL, next={"$dynamicRef": "#node"})},
        "one of referred": {
            "$defs": {"a": obj(kind={"const": "a"}), "b": obj(kind={"enum": ["b", "c"]})},
            "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        },
        "one of and any of": {"oneOf": [INT, NULL], "anyOf": [{"maximum": 5}, {"minimum": 7}]},
        "int64": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        "names of a pattern": {
            "propertyNames": {"pattern": "^[a-c]+$"},
            "additionalProperties": INT,
            "type": "object",
        },
        "names of a list": {
            "propertyNames": {"enum": ["a", "b"]},
            "additionalProperties": INT,
            "type": "object",
        },
        "names of a length": {
            "propertyNames": {"maxLength": 3},
            "additionalProperties": INT,
            "type": "object",
        },
        "unevaluated": {**obj(a=INT), "unevaluatedProperties": False},
        "never beside": {"type": "object", "properties": {"a": INT, "b": INT}, "not": {"required": ["a"]}},
        "dependent": {
            "type": "object",
            "properties": {"a": INT, "b": INT},
            "additionalProperties": False,
            "dependentRequired": {"a": ["b"]},
        },
        "pydantic": {
            "$defs": {
                "Item": {
                    "title": "Item",
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["sku", "quantity"],
                    "properties": {
                        "sku": {"title": "Sku", "type": "string", "pattern": "^[A-Z]{3}-\\d{2}$"},
                        "quantity": {"title": "Quantity", "type": "integer", "exclusiveMinimum": 0},
                        "price": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
                    },
                }
            },
            "title": "Order",
            "type": "object",
            "additionalProperties": False,
            "required": ["id", "items"],
            "properties": {
                "id": {"type": "string", "format": "uuid"},
                "items": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/Item"}},
                "note": {"type": "string", "maxLength": 10},
            },
        },
        "tool call": obj(
            name={"const": "weather"}, arguments=obj("city", city=text(), unit={"enum": ["C", "F"]})
        ),
        "extraction": obj(
            people=arr(obj(name=text(), born={"type": "string", "format": "date"})), count=SMALL
        ),
        "verdict": obj(
            reasoning=text(30),
            verdict={"enum": ["yes", "no"]},
            confidence={"type": "number", "minimum": 0, "maximum": 1},
        ),
        "geojson": obj(
            type={"const": "Point"},
            coordinates={"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 3},
        ),
        "matrix": arr(arr({"type": "integer", "minimum": -9, "maximum": 9}, 3, 3), 3, 3),
    }
    return found


def _nested(levels: int) -> Schema:
    schema: Schema = SMALL
    for _ in range(levels):
        schema = obj(a=schema)
    return schema


def _combined(scalars: dict[str, Schema]) -> dict[str, Schema]:
    """Each scalar as a property and in a list, two by two."""
    names = sorted(scalars)
    pairs = zip(names[::2], names[1::2], strict=False)
    return {
        f"object of {a} and {b}": obj(
            "first", first=scalars[a], second=arr(scalars[b], 0, 2), third=one_of(scalars[a], NULL)
        )
        for a, b in pairs
    }


def accepted() -> dict[str, Schema]:
    """Schemas that are enforced, by name."""
    scalars = _scalars()
    return scalars | _structures() | _combined(scalars)


def left_to_the_check() -> dict[str, tuple[Schema, str]]:
    """Schemas that masks hold a part of, each with the keyword that is named, and its place."""
    keywords: dict[str, Any] = {
        "not": {"minLength": 3},
        "contains": INT,
        "uniqueItems": True,
        "dependentRequired": {"a": ["b"]},
        "dependentSchemas": {"a": {"required": ["b"]}},
        "maxItems": 100_000,
        "minLength": 10**9,
    }
    found: dict[str, tuple[Schema, str]] = {
        f"keyword {name}": ({"properties": {"a": {name: value}}}, f"{name} (#/properties/a)")
        for name, value in keywords.items()
    }
    found |= {
        f"tiny {name}": ({"type": "number", name: 5e-324}, f"{name} (#)")
        for name in ("exclusiveMaximum", "exclusiveMinimum", "minimum", "maximum", "multipleOf")
    }
    found |= {f"format {f}": ({"type": "string", "format": f}, "format (#)") for f in ("regex", "iri")}
    patterns = (
        "(?i)a",
        "\\Aa",
        "[]",
        "^(?=a)b",
        "^(a)\\1$",
        "^(a$",
        "\\bword\\b",
        "a^b",
        "a$b",
        "a**",
        "a{3,2}",
    )
    found |= {f"pattern {pattern}": (like(pattern), "pattern (#)") for pattern in patterns}
    found |= {
        "deep inside": (
            {"anyOf": [{"allOf": [{"type": "array", "items": {"not": INT}}]}, NULL]},
            "not (#/anyOf/0/allOf/0/items)",
        ),
        "if": ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, "if (#)"),
        "draft 7": ({"dependencies": {"a": ["b"], "c": {"required": ["d"]}}}, "dependentRequired (#)"),
        "in a definition": (
            {"definitions": {"a": {"not": INT}}, "$ref": "#/definitions/a"},
            "not (#/definitions/a)",
        ),
        "unevaluated beside allOf": (
            {"allOf": [{"properties": {"a": INT}}], "unevaluatedProperties": False},
            "unevaluatedProperties (#)",
        ),
        "huge const": ({"type": "integer", "const": -(10**25)}, "const (#)"),
        "huge value of an enum": ({"type": "integer", "enum": [1, -(2**63)]}, "enum (#)"),
        "huge number in a const": ({"const": {"a": [2**60 + 1]}}, "const (#)"),
        "huge least": ({"minimum": 10**30}, "minimum (#)"),
        "tiny const": ({"type": "number", "const": 1e-300}, "const (#)"),
        "overlapping one of": ({"oneOf": [{"type": "number"}, INT]}, "oneOf (#)"),
        "names that may be the same": ({"type": "object", "minProperties": 2}, "minProperties (#)"),
        "names of a pattern that may be the same": (
            {"patternProperties": {"^a": INT}, "additionalProperties": False, "minProperties": 2},
            "minProperties (#)",
        ),
        "many of what is listed": (
            {"properties": {"a": INT, "b": INT}, "maxProperties": 1},
            "maxProperties (#)",
        ),
        "patterns of the same names": (
            {"patternProperties": {"^[0-9]": INT, "^\\d": BOOL}},
            "patternProperties (#)",
        ),
        "names beside listed ones": (
            {"properties": {"a": INT}, "propertyNames": {"pattern": "^a"}},
            "propertyNames (#)",
        ),
    }
    return found


def refused() -> dict[str, tuple[Schema | str, str]]:
    """Schemas that are refused, each with what the message names."""
    return {
        "not JSON": ("{", "not JSON"),
        "a number": ("3", "object, true or false"),
        "twice": ('{"type":"null","type":"null"}', "twice"),
        "NaN": ('{"const": NaN}', "NaN"),
        "infinite": ('{"minimum": 1e999}', "too large"),
        "deep JSON": ("[" * 9000, "nested"),
        "deep schema": (_nested(80), "nested"),
        "surrogate": ('{"const":"\\ud800"}', "surrogate"),
        "false": (False, "nothing matches"),
        "nothing of an enum": ({"enum": []}, "nothing matches"),
        "not anything": ({"not": {}}, "nothing matches"),
        "no type": ({"type": "text"}, "at #/type: there is no type 'text'"),
        "remote": ({"$ref": "https://example.com/s.json"}, "another document"),
        "no such": ({"$ref": "#/$defs/a"}, "'#/$defs/a'"),
        "negative length": ({"type": "string", "minLength": -1}, "at #/minLength"),
        "text length": ({"minLength": "3"}, "at #/minLength"),
        "no any of": ({"anyOf": []}, "at #/anyOf"),
        "required": ({"required": "a"}, "at #/required"),
        "properties": ({"properties": []}, "at #/properties"),
        "multiple of 0": ({"multipleOf": 0}, "at #/multipleOf"),
        "deep inside": ({"anyOf": [{"allOf": [{"items": 3}]}]}, "at #/anyOf/0/allOf/0/items"),
        "itself": ({"$ref": "#"}, "at #/$ref: the reference '#' leads to itself"),
        "itself, where it is not needed": (
            {"properties": {"a": {"$ref": "#/properties/a"}}},
            "at #/properties/a/$ref: the reference '#/properties/a' leads to itself",
        ),
        "each other": (
            {
                "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}},
                "items": {"$ref": "#/$defs/a"},
            },
            "at #/items/$ref: the reference '#/$defs/a' leads to itself",
        ),
        "a part of itself": ({"type": "object", "allOf": [{"$ref": "#"}]}, "at #/allOf/0/$ref"),
        "a long chain": (
            {
                "$defs": {"0": {"items": {"$ref": "#"}}}
                | {str(i + 1): {"$ref": f"#/$defs/{i}"} for i in range(2000)},
                "$ref": "#/$defs/2000",
            },
            "at #/$ref: the reference '#/$defs/2000' begins a chain of more than 64",
        ),
        "too many": (
            {"properties": {f"p{i}": {"$ref": "#/properties/p0/properties/a"} for i in range(9)}},
            "is no schema of it",
        ),
    }


def impossible() -> dict[str, Schema]:
    """Schemas that no answer matches: llguidance refuses them."""
    return {
        "contradiction": {"type": "string", "enum": [1, 2]},
        "bounds": {"type": "integer", "minimum": 5, "maximum": 3},
        "lengths": {"type": "string", "minLength": 5, "maxLength": 3},
        "two values": {"allOf": [{"const": "a"}, {"const": "b"}]},
        "required never": {"type": "object", "required": ["a"], "additionalProperties": False},
    }


@dataclass(frozen=True, slots=True)
class Walk:
    """A random answer.

    Attributes:
        is_complete: whether nothing need follow.
        error: of the matcher.
    """

    tokens: list[int]
    answer: bytes
    is_complete: bool
    error: str


def walk(
    compiled: Compiled, vocab: Vocab, draw: np.random.Generator, *, eager: int = 40, most: int = 600
) -> Walk:
    """What a model of no sense answers: any token that may come next; after `eager` ones it seeks the end."""
    matcher = compiled.matcher.deep_copy()
    mask = np.zeros(-(-vocab.size // 32), np.int32)
    tokens: list[int] = []
    for step in range(most):
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if matcher.is_error():
            break
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[: vocab.size])
        if not allowed.size:
            return Walk(tokens, _text(vocab, tokens), is_complete=False, error="nothing may follow")
        if step >= eager:
            allowed = _closing(allowed, vocab, draw)
        token = int(draw.choice(allowed))
        if token in vocab.eog:
            break
        tokens.append(token)
        if not matcher.consume_token(token) or matcher.is_stopped():
            break
    return Walk(tokens, _text(vocab, tokens), is_complete=matcher.is_accepting(), error=matcher.get_error())


def _closing(allowed: np.ndarray[Any, Any], vocab: Vocab, draw: np.random.Generator) -> np.ndarray[Any, Any]:
    """Mostly those that end something, if there are any; else short ones."""
    pieces = {token: vocab.piece(token) for token in allowed.tolist()}
    for wanted in (b'"', b"}", b"]"):
        ends = [t for t, piece in pieces.items() if t in vocab.eog or piece == wanted]
        if ends and draw.random() < 0.8:
            return np.array(ends)
    short = [t for t, piece in pieces.items() if len(piece) == 1 and not piece.isspace()]
    return np.array(short) if short else allowed


def _text(vocab: Vocab, tokens: list[int]) -> bytes:
    return b"".join(vocab.piece(token) for token in tokens)
