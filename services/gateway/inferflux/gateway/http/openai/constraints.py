"""Constraints of OpenAI's and vLLM's fields for structured output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.errors.errors import missing, unsupported
from inferflux.v1 import generation_pb2

from .bodies import ResponseFormat, SamplingBody, StructuredOutputs
from .fields import names_used

Constraint = generation_pb2.StructuredConstraint

# What an answer's format may be called.
FORMATS = ("text", "json_object", "json_schema")
# Our fields, and vLLM's names of them.
_OUTPUTS = {
    "json_schema": "json_",
    "json_object": "json_object",
    "regex": "regex",
    "choice": "choice",
    "gbnf": "grammar",
    "lark": "lark",
}


def to_constraint(body: SamplingBody) -> Constraint | None:
    """The constraint that a body asks for; None for none.

    Raises:
        InvalidArgument: there are two, or the format is not served.
    """
    formatted = _of_format(body.response_format) if body.response_format else None
    structured = _of_outputs(body.structured_outputs) if body.structured_outputs else None
    if formatted is not None and structured is not None:
        message = "structured_outputs does not go together with response_format"
        raise InvalidArgument(message, field="structured_outputs")
    return structured if formatted is None else formatted


def field_names(body: SamplingBody) -> Mapping[str, str]:
    """Map the fields of a constraint to the client's names."""
    if body.structured_outputs is not None:
        root = "structured_outputs"
        kinds = {f"constraint.{ours}": f"{root}.{_name(theirs)}" for ours, theirs in _OUTPUTS.items()}
        names = {"constraint.choice.texts": f"{root}.choice", **kinds, "constraint": root}
        used = names_used(body)
        return {inner: used.get(outer, outer) for inner, outer in names.items()}
    schema = _schema_of(body.response_format)[0] if body.response_format else "response_format"
    json_object = {"constraint.json_object": "response_format"}
    return {"constraint.json_schema": schema, **json_object, "constraint": "response_format"}


def _of_format(asked: ResponseFormat) -> Constraint | None:
    match asked.type:
        case "text":
            return None
        case "json_object" | "json_schema" | "json":
            place, schema = _schema_of(asked)
            if schema is not None:
                is_strict = bool(asked.json_schema and asked.json_schema.strict)
                return Constraint(json_schema=json_text(schema, place), strict=is_strict)
            if asked.type == "json_schema":
                raise missing("response_format.json_schema.schema")
            return Constraint(json_object=True)
    raise unsupported("response_format.type", f"{asked.type[:32]!r} is none of {', '.join(FORMATS)}")


def _schema_of(asked: ResponseFormat) -> tuple[str, dict[str, Any] | None]:
    """(where a format has its schema, the schema): OpenAI's place, llama.cpp's, or TGI's."""
    if asked.schema_ is not None:
        return "response_format.schema", asked.schema_
    if asked.value is not None:
        return "response_format.value", asked.value
    given = asked.json_schema.schema_ if asked.json_schema is not None else None
    return "response_format.json_schema.schema", given


def _of_outputs(asked: StructuredOutputs) -> Constraint:
    values = {ours: getattr(asked, theirs) for ours, theirs in _OUTPUTS.items()}
    given = {ours: value for ours, value in values.items() if value is not None}
    if len(given) != 1:
        names = ", ".join(map(_name, _OUTPUTS.values()))
        raise InvalidArgument(f"structured_outputs needs one of {names}", field="structured_outputs")
    (kind, value), *_ = given.items()
    if kind == "choice":
        return Constraint(choice=generation_pb2.ChoiceConstraint(texts=value))
    if kind == "json_schema":
        return Constraint(json_schema=json_text(value, "structured_outputs.json"))
    return Constraint(**{kind: value})


def json_text(schema: Any, field: str) -> str:
    """A schema as JSON text."""
    if isinstance(schema, str):
        return schema
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise InvalidArgument(f"{field} has a number that is no JSON", field=field) from None


def _name(attribute: str) -> str:
    return attribute.rstrip("_")
