"""Tools and tool choices of OpenAI's API to ours, and calls back (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.errors.errors import given, missing, unsupported
from inferflux.v1 import inference_pb2

from . import custom_tools
from .bodies import AllowedTools, CalledTool, ChosenFunction, FunctionBody, ToolBody, ToolChoiceBody
from .constraints import json_text

_TYPES = ("function", custom_tools.TYPE)
_MODES: Mapping[str, inference_pb2.ToolChoiceMode.ValueType] = {
    "auto": inference_pb2.TOOL_CHOICE_MODE_AUTO,
    "none": inference_pb2.TOOL_CHOICE_MODE_NONE,
    "required": inference_pb2.TOOL_CHOICE_MODE_REQUIRED,
}


def to_tools(tools: Sequence[ToolBody] | None, *, is_of_response: bool = False) -> list[inference_pb2.Tool]:
    """Tools of a chat have functions in them, those of a response are functions. Either form is taken.

    Args:
        is_of_response: which form errors name.

    Raises:
        InvalidArgument: a tool is no function.
    """
    inner = "" if is_of_response else ".function"
    return [_tool(tool, f"tools[{i}]", inner) for i, tool in enumerate(tools or [])]


def legacy_tools(functions: Sequence[FunctionBody]) -> list[ToolBody]:
    """Functions as they were named before there were tools.

    Raises:
        InvalidArgument: one has no name.
    """
    for i, function in enumerate(functions):
        if function.name is None:
            raise missing(f"functions[{i}].name")
    return [ToolBody(type="function", function=function) for function in functions]


def legacy_choice(choice: str | ChosenFunction | None) -> str | ToolChoiceBody | None:
    """`function_call` as a choice of tools."""
    if choice is None or isinstance(choice, str):
        return choice
    return ToolChoiceBody(type="function", function=choice)


def to_choice(
    choice: str | ToolChoiceBody | None, skipped: Sequence[ToolBody] = ()
) -> inference_pb2.ToolChoice | None:
    """A choice of tools.

    Args:
        skipped: tools of the request that the model is not told of. They are left out of those allowed.

    Raises:
        InvalidArgument: it is none of auto, none, required, a function, and tools of the request.
    """
    if choice is None:
        return None
    if isinstance(choice, str):
        if choice not in _MODES:
            raise unsupported("tool_choice", f"{choice[:32]!r} is none of {', '.join(_MODES)}")
        return inference_pb2.ToolChoice(mode=_MODES[choice])
    if choice.type == "allowed_tools":
        return _allowed(choice.allowed_tools or choice, skipped)
    if choice.type not in _TYPES:
        raise unsupported("tool_choice.type", f"{choice.type[:32]!r} is none of {', '.join(_TYPES)}")
    chosen = choice.function or choice.custom
    name = chosen.name if chosen else choice.name
    if not name:
        raise InvalidArgument("tool_choice: the tool's name is missing", field="tool_choice")
    return inference_pb2.ToolChoice(name=name)


def _allowed(allowed: AllowedTools, skipped: Sequence[ToolBody]) -> inference_pb2.ToolChoice:
    """Some of the tools, of which the model may call one, or has to."""
    mode = allowed.mode or "auto"
    if mode not in ("auto", "required"):
        raise unsupported("tool_choice.mode", f"{mode[:32]!r} is none of auto, required")
    if not allowed.tools:
        raise InvalidArgument("tool_choice names no tool", field="tool_choice")
    names: list[str] = []
    left_out = {_identity(tool) for tool in skipped}
    for i, tool in enumerate(allowed.tools):
        if _identity(tool) in left_out:
            continue
        if tool.type not in _TYPES:
            message = f"tool_choice: there is no tool of the type {tool.type[:64]!r}"
            raise InvalidArgument(message, field="tool_choice")
        names.append(given(tool.called or None, f"tool_choice.tools[{i}].name"))
    return inference_pb2.ToolChoice(mode=_MODES[mode if names else "none"], allowed=names)


def _identity(tool: ToolBody) -> tuple[str, str]:
    """A hosted tool is known by its type."""
    return tool.type, tool.called if tool.type in _TYPES else ""


def to_calls(calls: Sequence[CalledTool] | None, field: str) -> list[inference_pb2.ToolCall]:
    """Calls that a message has made.

    Raises:
        InvalidArgument: one is not of a function.
    """
    made: list[inference_pb2.ToolCall] = []
    for i, call in enumerate(calls or []):
        if call.custom is not None:
            text = custom_tools.arguments_of(call.custom.input)
            made.append(inference_pb2.ToolCall(id=call.id or "", name=call.custom.name, arguments=text))
            continue
        if call.type not in (None, "function") or call.function is None:
            raise unsupported(f"{field}[{i}].type", "only 'function' is supported")
        function = call.function
        arguments = arguments_of(function.arguments)
        made.append(inference_pb2.ToolCall(id=call.id or "", name=function.name, arguments=arguments))
    return made


def arguments_of(given: str | dict[str, Any] | None) -> str:
    """Arguments as JSON text; some clients send them as an object."""
    return json_text(given, "arguments") if isinstance(given, dict) else given or ""


def field_names(tools: Sequence[ToolBody] | None) -> Mapping[str, str]:
    """Return what clients of chats call the fields of their tools."""
    names = {"constraint.tool_calls.functions": "tools", "constraint.tool_calls": "tools"}
    for i, tool in enumerate(tools or []):
        if tool.function is not None:
            for name in ("name", "parameters"):
                names[f"tools[{i}].{name}"] = f"tools[{i}].function.{name}"
        elif tool.type == custom_tools.TYPE:
            place = f"tools[{i}]" + (".custom" if tool.custom is not None else "")
            names |= {f"tools[{i}].name": f"{place}.name", f"tools[{i}].parameters": f"{place}.format"}
    return names


def _tool(tool: ToolBody, field: str, inner: str) -> inference_pb2.Tool:
    if tool.type == custom_tools.TYPE:
        return custom_tools.to_tool(tool, field)
    if tool.type != "function":
        raise unsupported(f"{field}.type", f"{tool.type[:32]!r} is none of {', '.join(_TYPES)}")
    function: FunctionBody = tool.function or tool
    where = f"{field}.function" if tool.function else field
    if tool.function is None and tool.name is None:
        where = f"{field}{inner}"
    if function.name is None:
        raise missing(f"{where}.name")
    return inference_pb2.Tool(
        name=function.name,
        description=function.description or "",
        # Without any, and with {}, the function takes no arguments.
        parameters=json_text(function.parameters, f"{where}.parameters") if function.parameters else "",
        strict=bool(function.strict),
    )
