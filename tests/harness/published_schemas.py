"""Schemas as programs publish them: of manifests, events, forms and tool calls. Made up, in their manner."""

from __future__ import annotations

from typing import Any

from harness.schemas import BOOL, INT, NULL, NUMBER, Schema, arr, like, obj, one_of, text

_DATE: Schema = {"type": "string", "format": "date"}
_MOMENT: Schema = {"type": "string", "format": "date-time"}
_NAME = text(10)


def enum(values: str) -> Schema:
    return {"enum": values.split()}


def _of_draft_7(title: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": title, **schema}


def _of_draft_4(schema: dict[str, Any]) -> dict[str, Any]:
    return {"$schema": "http://json-schema.org/draft-04/schema#", **schema}


def accepted() -> dict[str, Schema]:
    """Schemas whose every keyword is enforced, by name."""
    menu: dict[str, Any] = {
        "$defs": {"entry": obj("label", label=_NAME, children=arr({"$ref": "#/$defs/entry"}, 0, 2))},
        "$ref": "#/$defs/entry",
    }
    address = _of_draft_7(
        "Address",
        {
            "definitions": {"country": like("^[A-Z]{2}$")},
            **obj(
                "street country",
                street=_NAME,
                zip=like("^\\d{5}$"),
                country={"$ref": "#/definitions/country"},
            ),
        },
    )
    step = one_of(
        obj(kind={"const": "shell"}, run=text(20)),
        obj(kind={"const": "wait"}, seconds={"type": "integer", "minimum": 1, "maximum": 3600}),
        obj(kind={"const": "approve"}, by=arr(_NAME, 1, 2)),
    )
    card = {k: v for k, v in obj(card=_NAME, billing=_NAME).items() if k != "required"}
    return {
        "manifest": obj(
            "name version",
            name=like("^[a-z][a-z0-9-]{0,12}$"),
            version=like("^\\d{1,2}\\.\\d{1,2}\\.\\d{1,2}$"),
            private=BOOL,
            keywords=arr(_NAME, 0, 3),
            dependencies={"type": "object", "additionalProperties": _NAME, "maxProperties": 2},
        ),
        "issue": obj(
            title=text(20), labels=arr(enum("bug docs question"), 0, 2), assignee=one_of(_NAME, NULL)
        ),
        "container": obj(
            "image",
            image=text(16),
            ports=arr(
                obj("port", port={"type": "integer", "minimum": 1, "maximum": 65535}, name=_NAME), 0, 2
            ),
            env=arr(obj(name=like("^[A-Z_]{1,8}$"), value=_NAME), 0, 2),
            limits=obj("", cpu=like("^\\d{1,3}m$"), memory=like("^\\d{1,3}Mi$")) | {"required": []},
        ),
        "invoice": obj(
            number=like("^INV-\\d{4}$"),
            issued=_DATE,
            lines=arr(obj(text=_NAME, amount={"type": "number", "minimum": 0}, quantity=INT), 1, 2),
            currency=enum("EUR USD CHF"),
        ),
        "recipe": obj(
            name=text(16),
            servings={"type": "integer", "minimum": 1, "maximum": 12},
            ingredients=arr(obj(item=_NAME, grams={"type": "number", "exclusiveMinimum": 0}), 1, 3),
        ),
        "weather call": obj(
            name={"const": "weather"}, arguments=obj("city", city=_NAME, unit=enum("C F"), days=INT)
        ),
        "calendar": obj("start", start=_MOMENT, end=_MOMENT, all_day=BOOL, guests=arr(text(8), 0, 2)),
        "address": address,
        "review": obj(
            rating={"type": "integer", "minimum": 1, "maximum": 5}, text=text(30), would_buy_again=BOOL
        ),
        "event": obj(
            schema=like("^iglu:[a-z]{2,5}/[a-z]{2,5}/jsonschema/1-0-\\d$"),
            data={"type": "object", "properties": {"page": _NAME}, "required": ["page"], "maxProperties": 2},
        ),
        "geojson": obj(
            type={"const": "Polygon"},
            coordinates=arr(arr(arr({"type": "number", "minimum": -180, "maximum": 180}, 2, 2), 4, 4), 1, 1),
        ),
        "parameter": obj(
            "name in",
            name=_NAME,
            required=BOOL,
            schema=obj(type=enum("string integer")),
            **{"in": enum("query path")},
        ),
        "resume": obj(
            name=_NAME,
            email={"type": "string", "format": "email"},
            jobs=arr(
                obj("title", title=_NAME, since={"type": "integer", "minimum": 1950, "maximum": 2050}), 0, 2
            ),
        ),
        "sentiment": obj(
            label=enum("positive neutral negative"), score={"type": "number", "minimum": 0, "maximum": 1}
        ),
        "entities": arr(obj(text=_NAME, kind=enum("PERSON PLACE DATE"), at=arr(INT, 2, 2)), 0, 3),
        "chess move": like("^([a-h][1-8]){2}[qrbn]?$"),
        "palette": arr(like("^#[0-9a-f]{6}$"), 3, 5),
        "pipeline": obj(name=_NAME, steps=arr(step, 1, 3)),
        "menu": menu,
        "transfer": obj(
            iban=like("^[A-Z]{2}\\d{2}[A-Z0-9]{11,15}$"),
            cents={"type": "integer", "minimum": 1, "maximum": 99_999_999},
            reference=one_of(_NAME, NULL),
        ),
        "reading": obj(sensor={"type": "string", "format": "uuid"}, at=_MOMENT, values=arr(NUMBER, 1, 4)),
        "host": obj(name={"type": "string", "format": "hostname"}, ip={"type": "string", "format": "ipv4"}),
        "patch": arr(
            obj("op path", op=enum("add remove replace"), path=like("^/[a-z]{1,6}$"), value=_NAME), 1, 2
        ),
        "labels": {
            "type": "object",
            "patternProperties": {"^[a-z]{1,5}/[a-z]{1,5}$": _NAME},
            "additionalProperties": False,
            "maxProperties": 3,
        },
        "dependent fields": {**card, "dependentRequired": {"card": ["billing"]}},
        "draft 4 dependencies": _of_draft_4({**card, "dependencies": {"card": ["billing"]}}),
        "named like": {
            "type": "object",
            "propertyNames": {"pattern": "^[a-z]{1,5}$"},
            "additionalProperties": INT,
            "maxProperties": 2,
        },
        "an upload": {"type": "string", "maxLength": 8, "contentEncoding": "base64"},
        "of draft 4": _of_draft_4({"type": "number", "minimum": 0, "exclusiveMinimum": True}),
        "a tuple of draft 7": _of_draft_7(
            "Pair", {"type": "array", "items": [_NAME, INT], "minItems": 2, "additionalItems": False}
        ),
        "either": {"oneOf": [obj(ok={"const": True}, value=INT), obj(ok={"const": False}, error=_NAME)]},
    }


def refused() -> dict[str, tuple[Schema, str]]:
    """Schemas that are refused where they are strict, each with what the message names."""
    card = {"type": "object", "properties": {"card": {"type": "string"}, "billing": {"type": "string"}}}
    return {
        "conditional form": (
            {**card, "if": {"required": ["card"]}, "then": {"required": ["billing"]}},
            "if (#)",
        ),
        "a set": ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "uniqueItems (#)"),
        "one of them": ({"type": "array", "contains": {"const": "admin"}}, "contains (#)"),
        "not empty": ({"type": "string", "not": {"const": ""}}, "not (#)"),
        "of the network": ({"$ref": "https://json.schemastore.org/package"}, "another document"),
        "an expression": ({"type": "string", "format": "regex"}, "format (#)"),
        "closed by others": ({"allOf": [card], "unevaluatedProperties": False}, "unevaluatedProperties (#)"),
    }
