"""Tools of a request: checked, and made into what renders, constrains and reads its answer (pure)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic_core import from_json

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests.constraint_limits import (
    MAX_FUNCTIONS_BYTES,
    check_function_name,
    check_function_names,
)
from inferflux.common.text.constraints import schema as schemas
from inferflux.common.text.constraints.answers.schemas import parameter_types
from inferflux.common.text.constraints.schema import Schema, Unenforced, refuse_unenforced
from inferflux.v1 import generation_pb2, inference_pb2, tokenizer_pb2

_NO_ARGUMENTS = '{"type":"object","properties":{},"additionalProperties":false}'
_SAYING_NOTHING = {"type", "properties", "required", "title", "description", "$schema"}
_MODES = frozenset(inference_pb2.ToolChoiceMode.values())
# Schemas of functions that are read already, and the longest of them.
_MOST_REMEMBERED, _MOST_REMEMBERED_CHARS = 1024, 4 << 10


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a chat may call.

    Attributes:
        tools: what the model is told of; none where it shall not call.
        functions: those of them that it may call, with normalised schemas.
        is_required: whether it has to call one.
        is_single: whether it may make one call only.
        unenforced: keywords of their schemas that only complete calls are checked against.
    """

    tools: Sequence[inference_pb2.Tool] = ()
    functions: Sequence[generation_pb2.FunctionSchema] = ()
    is_required: bool = False
    is_single: bool = False
    unenforced: Sequence[Unenforced] = ()

    @property
    def names(self) -> frozenset[str]:
        return frozenset(function.name for function in self.functions)

    def constraint(
        self, chat: tokenizer_pb2.RenderedChat, content: generation_pb2.StructuredConstraint | None = None
    ) -> generation_pb2.ToolCallsConstraint:
        """Make the constraint that holds the answer to a rendered prompt to these tools.

        Args:
            content: what an answer without calls has to look like; None: any text.
        """
        return generation_pb2.ToolCallsConstraint(
            content=None if self.is_required else content,
            functions=self.functions,
            is_required=self.is_required,
            is_single=self.is_single,
            reasoning=chat.reasoning,
            syntax=chat.syntax,
            prefix=chat.prefix,
        )

    def types(self) -> Iterable[generation_pb2.FunctionTypes]:
        """JSON types of the functions' parameters."""
        for function in self.functions:
            types = parameter_types(json.loads(function.parameters))
            yield generation_pb2.FunctionTypes(function=function.name, types=types)


def schema_bytes(tools: Sequence[inference_pb2.Tool]) -> int:
    """How much text there is to read of the tools."""
    return sum(len(tool.parameters) for tool in tools)


def tool_use_of(request: inference_pb2.ChatRequest) -> ToolUse:
    """Check tools and tool choice.

    Raises:
        InvalidArgument: a name that calls cannot spell, a schema that is none, too much of it, or
            a choice that the tools do not have.
    """
    functions, unenforced = functions_of(request.tools)
    is_required = False
    match request.tool_choice.WhichOneof("choice"):
        case "name":
            name = request.tool_choice.name
            functions = [function for function in functions if function.name == name]
            if not functions:
                message = f"tool_choice: there is no tool {name[:64]!r}"
                raise InvalidArgument(message, field="tool_choice")
            is_required = True
        case "mode":
            mode = request.tool_choice.mode
            if mode not in _MODES:
                raise InvalidArgument(f"tool_choice: there is no mode {mode}", field="tool_choice")
            if mode == inference_pb2.TOOL_CHOICE_MODE_NONE:
                return ToolUse()
            is_required = mode == inference_pb2.TOOL_CHOICE_MODE_REQUIRED
            functions = _allowed(functions, request.tool_choice.allowed)
            if is_required and not functions:
                raise InvalidArgument("tool_choice: there are no tools", field="tool_choice")
    # A client that names one tool reads one call of it, as from vLLM.
    is_named = request.tool_choice.WhichOneof("choice") == "name"
    may_be_several = request.parallel_tool_calls if request.HasField("parallel_tool_calls") else not is_named
    return ToolUse(request.tools if functions else (), functions, is_required, not may_be_several, unenforced)


def _allowed(
    functions: list[generation_pb2.FunctionSchema], names: Iterable[str]
) -> list[generation_pb2.FunctionSchema]:
    """The functions of these names; all where there are none."""
    allowed = frozenset(names)
    if unknown := sorted(allowed.difference(function.name for function in functions)):
        raise InvalidArgument(f"tool_choice: there is no tool {unknown[0][:64]!r}", field="tool_choice")
    return [function for function in functions if not allowed or function.name in allowed]


def functions_of(
    tools: Sequence[inference_pb2.Tool],
) -> tuple[list[generation_pb2.FunctionSchema], list[Unenforced]]:
    """The tools' functions, with the schemas of their arguments, and what masks do not enforce of those.

    Raises:
        InvalidArgument: naming the tool's field.
    """
    check_function_names((tool.name for tool in tools), "tools")
    size = sum(len(tool.description.encode()) + len(tool.parameters.encode()) for tool in tools)
    if size > MAX_FUNCTIONS_BYTES:
        message = (
            f"tools: descriptions and schemas have at most {MAX_FUNCTIONS_BYTES} bytes together, not {size}"
        )
        raise InvalidArgument(message, field="tools", reason="CONSTRAINT_TOO_LARGE")
    functions, unenforced = [], []
    for i, tool in enumerate(tools):
        field = f"tools[{i}].parameters"
        schema = _arguments_schema(tool.parameters, field)
        if tool.strict:
            refuse_unenforced(schema.unenforced, field)
        checked = schema.checked if schema.checked != schema.enforced else ""
        functions.append(
            generation_pb2.FunctionSchema(
                name=tool.name, parameters=schema.enforced, checked_parameters=checked
            )
        )
        unenforced += [Unenforced(left.keyword, tool.name + left.path) for left in schema.unenforced]
    return functions, unenforced


def check_calls(message: inference_pb2.ChatMessage, field: str) -> None:
    """Calls that a message of the conversation has made.

    Raises:
        InvalidArgument: naming what is wrong of `field`.
    """
    if not message.tool_calls:
        return
    if message.role != "assistant":
        raise InvalidArgument(
            f"{field}.tool_calls: only the assistant calls tools", field=f"{field}.tool_calls"
        )
    for i, call in enumerate(message.tool_calls):
        check_function_name(call.name, f"{field}.tool_calls[{i}].name")


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments of a call in a conversation. An answer that a limit cut can be sent back: what is there
    of its arguments is taken, and text that is no object at all becomes the value of one."""
    try:
        found = from_json(text or "{}", allow_inf_nan=False, allow_partial="trailing-strings")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"arguments": text}


def _arguments_schema(text: str, field: str) -> Schema:
    """The schema of a function's arguments, which are an object. One that says nothing stands for none."""
    if not text:
        return Schema(_NO_ARGUMENTS, _NO_ARGUMENTS)
    try:
        return _known_arguments(text) if len(text) <= _MOST_REMEMBERED_CHARS else _arguments(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"{field}: {error.message}", field=field, reason=error.reason) from None


def _arguments(text: str) -> Schema:
    value = _parsed(text)
    if value is None and text.strip() != "null":
        schemas.read_schema(text, is_arguments=True)  # which may say why
        raise InvalidArgument("the schema is no JSON, or nested too deeply", reason="BAD_SCHEMA")
    if _names_none(value):
        return Schema(_NO_ARGUMENTS, _NO_ARGUMENTS)
    return schemas.read_schema(text, is_arguments=True)


def _names_none(value: Any) -> bool:
    """Return whether a schema says that there are no arguments: by nothing, or, as pydantic, zod and MCP
    servers do, by an empty list of properties."""
    if not value:
        return value is None or value == {}
    is_bare = isinstance(value, dict) and value.keys() <= _SAYING_NOTHING and not value.get("required")
    return is_bare and value.get("properties") == {}


# An agent sends the same tools with every request.
_known_arguments = lru_cache(_MOST_REMEMBERED)(_arguments)


def _parsed(text: str) -> Any:
    """A JSON text's value; None if it is none, or is nested 200 deep.

    Python's own parser also takes NaN, and halves of surrogate pairs, of which no prompt can be made.
    """
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return None
