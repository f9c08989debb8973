"""Errors in the words of an HTTP client: its own field names, and the shape of OpenAI's API. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from inferflux.common.contract.errors import InferFluxError, InvalidArgument

_FIRST = re.compile(r"\w*")
_PARAMS = re.compile(r"^params\.(sampling\.)?")
# Pydantic says so of each alternative of a union.
_INPUT = "Input should be "
# Longest name or text of a caller that an error repeats.
_SHOWN = 100


class BodyTooLarge(InvalidArgument):
    """The body has more bytes, values or names than the endpoint takes."""

    http_status = 413


class SchemaMismatch(InferFluxError):
    """The answer is complete, and does not match its schema. To ask again is the client's to decide: OpenAI's
    clients repeat no request that got this status.
    """

    code = 9
    default_reason = "SCHEMA_MISMATCH"
    http_status = 422
    http_type = "invalid_request_error"


def in_words_of(error: InferFluxError, names: Mapping[str, str]) -> InferFluxError:
    """The error with the field of an inner message named as the client named it.

    Args:
        names: client's names of inner fields, where they differ; without `params.` and `sampling.`.
    """
    if not isinstance(error, InvalidArgument) or not error.field:
        return error
    inner = _PARAMS.sub("", error.field)
    name = next((known for known in names if _is_part(known, inner)), _first(inner))
    outer, rest = names.get(name, name), inner.removeprefix(name)
    message = error.message
    if outer != name and message.startswith(name):
        message = outer + message.removeprefix(name)
    return InvalidArgument(message, field=outer + rest.removeprefix(".ids"), reason=error.reason)


def with_field(error: InferFluxError) -> str:
    """The message of an error, with the field that is wrong: some APIs have no other place for it."""
    field = error.field if isinstance(error, InvalidArgument) else ""
    return error.message if field in error.message else f"{field}: {error.message}"


def of_validation(error: ValidationError, names: Mapping[str, str] = MappingProxyType({})) -> InvalidArgument:
    """The first thing that is wrong about a body, with its field.

    Args:
        names: what the client calls fields that have another name inside.
    """
    problems = error.errors(include_url=False, include_context=True)
    problem = _innermost(problems)
    if problem["type"] == "json_invalid":
        if not problem["input"]:
            return InvalidArgument("the body is empty: send a JSON object", reason="INVALID_JSON")
        why = str(problem.get("ctx", {}).get("error", "it does not parse"))
        return InvalidArgument(f"the body is not JSON: {why}", reason="INVALID_JSON")
    inside = path_of(problem["loc"])
    field = names.get(inside, inside)
    said = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return InvalidArgument(f"{field}: {said}" if field else said, field=field)
    if problem["type"] == "missing":
        return missing(field)
    alternatives = [each["msg"] for each in problems if path_of(each["loc"]) == inside]
    if all(each.startswith(_INPUT) for each in alternatives):
        said = _INPUT + " or ".join(dict.fromkeys(each.removeprefix(_INPUT) for each in alternatives))
    message = f"{field or 'the body'}: {said[:1].lower()}{said[1:]}"
    reason = "INVALID_TYPE" if problem["type"].endswith("_type") else ""
    return InvalidArgument(message, field=field, reason=reason)


def _innermost(problems: list[ErrorDetails]) -> ErrorDetails:
    """The first problem, or one inside its value: of alternatives the one that got further was meant."""
    outer = path_of(problems[0]["loc"])
    inner = [each for each in problems if _is_part(outer, path_of(each["loc"]))]
    return max(inner, key=lambda each: len(path_of(each["loc"])), default=problems[0])


def given(value: str | None, field: str) -> str:
    """The value of a field that has to be there.

    Raises:
        InvalidArgument: it is not.
    """
    if value is None:
        raise missing(field)
    return value


def missing(field: str) -> InvalidArgument:
    """A field that is needed is not there."""
    return InvalidArgument(f"{field} is missing", field=field, reason="MISSING_REQUIRED_PARAMETER")


def unsupported(field: str, what: str = "") -> InvalidArgument:
    """A value that OpenAI's API knows and this one does not serve."""
    message = f"{field}: {what or 'it is not supported'}"
    return InvalidArgument(message, field=field, reason="UNSUPPORTED_VALUE")


def path_of(location: tuple[int | str, ...]) -> str:
    """`messages[0].content` of the parts of a place; names of alternatives that were tried are left out."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif _is_field(part):
            path += f".{part}" if path else part
    return path


def _is_field(part: str) -> bool:
    """Alternatives of a union are named by their types: `list[int]`, `str`, `ToolChoiceBody`."""
    is_type = part in _TYPE_NAMES or part[:1].isupper()
    return part.isidentifier() and not is_type and len(part) <= _SHOWN


_TYPE_NAMES = frozenset({"str", "int", "float", "bool", "list", "dict", "constrained-str", "none"})


def _first(field: str) -> str:
    match = _FIRST.match(field)
    return match[0] if match else field


def _is_part(name: str, field: str) -> bool:
    """Return whether a field is `name`, or in it."""
    return field.startswith(name) and field[len(name) :][:1] in ("", ".", "[")
