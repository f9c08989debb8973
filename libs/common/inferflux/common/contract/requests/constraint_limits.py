"""Limits of constraints: one definition for gateway, scheduler and worker (pure).

| field | allowed |
|---|---|
| any text, all choices together | 1 to 16,384 bytes |
| a JSON schema | 1 to 65,536 bytes; 4 times that as it is enforced |
| params.constraint.choice.texts | 1 to 1,000, each 1 byte or more |
| params.constraint.tool_calls.functions | 1 to 512; schemas of 524,288 bytes together |
| a function's name | 1 to 128 characters, none of them a control character |

A constraint decides where the answer ends. So it excludes `stop`, `stop_token_ids` and `ignore_eos`. Tool
calls that are not required leave the model its own text, which may end at `stop` and `stop_token_ids`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from inferflux.common.contract.errors import InvalidArgument
from inferflux.v1 import generation_pb2

FIELD = "params.constraint"
MAX_BYTES = 16 << 10
MAX_CHOICES = 1000
MAX_SCHEMA_BYTES = 64 << 10
# With the classes of its patterns spelled out.
MAX_ENFORCED_BYTES = 4 * MAX_SCHEMA_BYTES
MAX_FUNCTIONS = 512
MAX_FUNCTIONS_BYTES = 512 << 10

# Which of them a model's calls can spell, its syntax says.
_NAME = re.compile(r"(?!\s)[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,128}(?<!\s)")


def check_constraint(params: generation_pb2.GenerationParams) -> None:
    """Check the size of a constraint, and what it is combined with. Its text is checked where it is compiled.

    Raises:
        InvalidArgument: naming the field.
    """
    if not params.HasField("constraint"):
        return
    kind = params.constraint.WhichOneof("constraint")
    if kind is None:
        raise InvalidArgument("the constraint is empty: set one of its fields", field=FIELD)
    field = field_of(params.constraint)
    if kind == "json_object":
        if not params.constraint.json_object:
            raise InvalidArgument("json_object is true or not set", field=field)
    elif kind == "choice":
        _check_choices(params.constraint.choice.texts, f"{field}.texts")
    elif kind == "tool_calls":
        _check_tool_calls(params.constraint.tool_calls, field)
    elif kind == "json_schema":
        check_size(len(params.constraint.json_schema.encode()), field, most=MAX_ENFORCED_BYTES)
    else:
        check_size(len(getattr(params.constraint, kind).encode()), field)
    _check_combination(params)


def field_of(constraint: generation_pb2.StructuredConstraint) -> str:
    """The field of a request that errors about this constraint name."""
    kind = constraint.WhichOneof("constraint")
    return f"{FIELD}.{kind}" if kind else FIELD


def asking_field_of(constraint: generation_pb2.StructuredConstraint) -> str:
    """The field that the client set to get it: calls are asked for with tools."""
    return "tools" if constraint.HasField("tool_calls") else field_of(constraint)


def check_function_names(names: Iterable[str], field: str) -> None:
    """Check names of functions: at most 512, which a call can spell, and none twice.

    Args:
        field: of the list of functions; a name is `field[i].name`.

    Raises:
        InvalidArgument: naming the field.
    """
    seen: set[str] = set()
    for i, name in enumerate(names):
        if i == MAX_FUNCTIONS:
            message = f"more than {MAX_FUNCTIONS} functions"
            raise InvalidArgument(message, field=field, reason="CONSTRAINT_TOO_LARGE")
        place = f"{field}[{i}].name"
        check_function_name(name, place)
        if name in seen:
            raise InvalidArgument(f"{place}: {name} is there twice", field=place)
        seen.add(name)


def check_function_name(name: str, field: str) -> None:
    """Raises InvalidArgument unless a call can spell the name."""
    if not _NAME.fullmatch(name):
        wanted = "1 to 128 characters, none a control character, no blank at an end"
        message = f"{field}: a name is {wanted}, not {name[:128]!r}"
        raise InvalidArgument(message, field=field)


def _check_tool_calls(calls: generation_pb2.ToolCallsConstraint, field: str) -> None:
    if not calls.syntax.HasField("calls"):
        raise InvalidArgument("there is no syntax of calls", field=f"{field}.syntax.calls")
    if calls.reasoning not in generation_pb2.ReasoningFormat.values():
        raise InvalidArgument("an unknown format of reasoning", field=f"{field}.reasoning")
    if calls.HasField("content"):
        _check_content(calls.content)
    if not calls.functions:
        raise InvalidArgument("there is no function to call", field=f"{field}.functions")
    check_function_names((function.name for function in calls.functions), f"{field}.functions")
    size = sum(len(function.parameters.encode()) for function in calls.functions)
    if size > MAX_FUNCTIONS_BYTES:
        message = f"the schemas have at most {MAX_FUNCTIONS_BYTES} bytes together, not {size}"
        raise InvalidArgument(message, field=f"{field}.functions", reason="CONSTRAINT_TOO_LARGE")


def check_size(size: int, field: str, *, most: int = MAX_BYTES) -> None:
    """Raises InvalidArgument for a text that is empty, or longer than `most` bytes."""
    if not 1 <= size <= most:
        message = f"{field.rpartition('.')[2]} has 1 to {most} bytes, not {size}"
        raise InvalidArgument(message, field=field, reason="CONSTRAINT_TOO_LARGE" if size else "")


def _check_choices(choices: Sequence[str], field: str) -> None:
    if not 1 <= len(choices) <= MAX_CHOICES:
        message = f"{len(choices)} choices; 1 to {MAX_CHOICES} are taken"
        raise InvalidArgument(message, field=field, reason="CONSTRAINT_TOO_LARGE" if choices else "")
    for i, text in enumerate(choices):
        if not text:
            raise InvalidArgument("a choice is empty", field=f"{field}[{i}]")
    check_size(sum(len(text.encode()) for text in choices), field)


def _check_content(constraint: generation_pb2.StructuredConstraint) -> None:
    if constraint.HasField("tool_calls"):
        raise InvalidArgument("calls are no content", field=f"{FIELD}.tool_calls.content")
    check_constraint(generation_pb2.GenerationParams(constraint=constraint))


def _check_combination(params: generation_pb2.GenerationParams) -> None:
    has_tools = params.constraint.HasField("tool_calls")
    has_own_text = has_tools and not params.constraint.tool_calls.is_required
    what = "tools: a call" if has_tools else "a constraint, which"
    for name in ("ignore_eos",) if has_own_text else ("stop", "stop_token_ids", "ignore_eos"):
        if getattr(params, name):
            message = f"{name} does not go together with {what} decides where the answer ends"
            raise InvalidArgument(message, field=f"params.{name}")
