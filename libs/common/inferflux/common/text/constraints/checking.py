"""Check of a complete answer against its constraint: JSON and tool calls against their schemas.

The work is not bounded: alternatives that repeat themselves at each level of an answer take twice as long for
each of them. And jsonschema_rs lets no other thread run meanwhile. So it is for processes that may be killed.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jsonschema_rs

from inferflux.common.text.answers.families import syntax_in
from inferflux.common.text.answers.parser import AnswerParser
from inferflux.common.text.answers.pieces import CallArguments, CallName, Content
from inferflux.v1 import generation_pb2

from .answers.schemas import parameter_types

# Python reads no longer integers; those of models do not end by themselves.
_MOST_DIGITS = 4000

Check = Callable[[str], str]
"""Why an answer is wrong; "" if it is not."""


class ConstraintError(Exception):
    """The constraint cannot be used; says why."""


def is_checked(constraint: generation_pb2.StructuredConstraint) -> bool:
    """True if an answer needs a check beyond its grammar."""
    return constraint.WhichOneof("constraint") in ("json_object", "json_schema", "tool_calls")


def check_of(constraint: generation_pb2.StructuredConstraint) -> Check:
    """The check of its answers.

    Raises:
        ConstraintError: a schema that cannot be checked.
    """
    if constraint.HasField("syntax"):
        return _content_check(constraint)
    match constraint.WhichOneof("constraint"):
        case "json_object":
            return _schema_check({"type": "object"})
        case "json_schema":
            return _schema_check(json.loads(constraint.checked_schema or constraint.json_schema))
        case "tool_calls":
            return _calls_check(constraint.tool_calls)
        case _:
            return lambda _answer: ""


def _number(text: str) -> float:
    """Any number that JSON can spell; those that no float holds count as the largest one."""
    if len(text) <= _MOST_DIGITS and text.lstrip("-").isdigit():
        return int(text)
    number = float(text)
    return number if math.isfinite(number) else math.copysign(sys.float_info.max, number)


def _schema_check(schema: Any) -> Check:
    validator = _validator_of(schema)

    def check(answer: str) -> str:
        try:
            value = json.loads(answer, parse_float=_number, parse_int=_number)
            error = next(validator.iter_errors(value), None)
        except (ValueError, RecursionError) as broken:
            return f"it cannot be read: {broken}"
        return "" if error is None else readable(str(error.message))

    return check


def _content_check(constraint: generation_pb2.StructuredConstraint) -> Check:
    """The check does not look at what is around the content, such as a thought."""
    alone = generation_pb2.StructuredConstraint()
    alone.CopyFrom(constraint)
    alone.ClearField("syntax")
    check = check_of(alone)

    def check_content(answer: str) -> str:
        parser = AnswerParser(
            syntax=constraint.syntax, reasoning=constraint.reasoning, prefix=constraint.prefix
        )
        pieces = parser.push(answer) + parser.finish()
        return check("".join(piece.text for piece in pieces if isinstance(piece, Content)))

    return check_content


def _validator_of(schema: Any) -> jsonschema_rs.Draft202012Validator:
    """Expressions are read in linear time where they can be; those that cannot be read are left out.

    Raises:
        ConstraintError: a schema that cannot be checked.
    """
    why = ""
    for options in (jsonschema_rs.RegexOptions(), jsonschema_rs.FancyRegexOptions()):
        try:
            return jsonschema_rs.Draft202012Validator(schema, validate_formats=True, pattern_options=options)
        except ValueError as error:
            why = readable(str(error))
    readable_ones = without_bad_patterns(schema)
    if readable_ones == schema:
        raise ConstraintError(why)
    return _validator_of(readable_ones)


def without_bad_patterns(schema: Any) -> Any:
    """The schema without expressions that no reader takes. Values that look like keywords are no harm."""
    if isinstance(schema, list):
        return [without_bad_patterns(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: without_bad_patterns(of) for name, of in schema.items()}
    if isinstance(pattern := kept.get("pattern"), str) and not _is_expression(pattern):
        del kept["pattern"]
    by_pattern = kept.get("patternProperties")
    if isinstance(by_pattern, dict) and not all(map(_is_expression, by_pattern)):
        del kept["patternProperties"]
        kept.pop("additionalProperties", None)
    return kept


def _is_expression(pattern: str) -> bool:
    try:
        jsonschema_rs.Draft202012Validator(
            {"pattern": pattern}, pattern_options=jsonschema_rs.FancyRegexOptions()
        )
    except ValueError:
        return False
    return True


def _calls_check(calls: generation_pb2.ToolCallsConstraint) -> Check:
    """Every complete call is of a function's schema, and there is one where one is required."""
    checks = {
        function.name: _schema_check(json.loads(function.checked_parameters or function.parameters))
        for function in calls.functions
    }

    types = {each.name: parameter_types(json.loads(each.parameters)) for each in calls.functions}
    syntax = syntax_in(calls.syntax, calls.reasoning)
    content_check = None
    if calls.HasField("content"):
        content = generation_pb2.StructuredConstraint(
            syntax=syntax, reasoning=calls.reasoning, prefix=calls.prefix
        )
        content.MergeFrom(calls.content)
        content_check = check_of(content)

    def check(answer: str) -> str:
        made = _calls_in(answer, syntax, names=types, reasoning=calls.reasoning, prefix=calls.prefix)
        if content_check is not None and not made:
            return content_check(answer)
        if calls.is_required and not made:
            return "it has no call"
        wrong = ((name, checks[name](arguments)) for name, arguments in made)
        return next((f"the call of {name}: {why}" for name, why in wrong if why), "")

    return check


def _calls_in(
    answer: str,
    syntax: generation_pb2.AnswerSyntax,
    *,
    names: Mapping[str, Mapping[str, str]],
    reasoning: generation_pb2.ReasoningFormat.ValueType,
    prefix: str = "",
) -> list[tuple[str, str]]:
    """Names and arguments of the complete calls of a whole answer that was held to its syntax."""
    parser = AnswerParser(syntax=syntax, names=names, reasoning=reasoning, is_exact=True, prefix=prefix)
    calls: list[tuple[str, str]] = []
    for piece in parser.push(answer) + parser.finish():
        if isinstance(piece, CallName):
            calls.append((piece.name, ""))
        elif isinstance(piece, CallArguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.text)
    return calls[:-1] if parser.is_cut else calls


def readable(message: str) -> str:
    """Error in one line, without what llguidance adds for its authors."""
    return " ".join(message.replace("<non-verbose/>", "").split())[:500]
