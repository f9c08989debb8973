"""Tools that take a text, OpenAI's `custom` ones: here functions with one argument. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from inferflux.gateway.http.errors.errors import given, unsupported
from inferflux.v1 import inference_pb2

from .answers import Json
from .bodies import CustomFormat, ToolBody

TYPE = "custom"
# The only argument.
_INPUT = "input"
_BEGIN = re.compile(rf'\s*\{{\s*"{_INPUT}"\s*:\s*"')
# Whole characters of a JSON text: the two halves of a pair come together.
_WHOLE = re.compile(
    r"""(?:[^"\\]|\\["\\/bfnrt]|\\u[dD][89abAB]..\\u....|\\u(?![dD][89abAB])[0-9a-fA-F]{4})*""", re.DOTALL
)


def to_tool(tool: ToolBody, field: str) -> inference_pb2.Tool:
    """The function that stands for a custom tool.

    Raises:
        InvalidArgument: it has no name, or a format that is not served.
    """
    custom = tool.as_custom
    where = f"{field}.custom" if tool.custom else field
    if not is_served(tool):
        raise unsupported(f"{where}.format", "it is neither a text nor an expression: use structured_outputs")
    text: Json = {"type": "string"}
    if pattern := _pattern(custom.format):
        text["pattern"] = pattern
    schema = {
        "type": "object",
        "properties": {_INPUT: text},
        "required": [_INPUT],
        "additionalProperties": False,
    }
    return inference_pb2.Tool(
        name=given(custom.name, f"{where}.name"),
        description=custom.description or "",
        parameters=json.dumps(schema),
        strict=True,
    )


def is_served(tool: ToolBody) -> bool:
    """Return whether its format is a text, or an expression that the text matches."""
    form = tool.as_custom.format
    return form is None or form.type == "text" or bool(_pattern(form))


def _pattern(form: CustomFormat | None) -> str:
    """The expression that the whole text matches; empty where there is none."""
    grammar = (form.grammar or form) if form is not None and form.type == "grammar" else None
    if grammar is None or grammar.syntax != "regex" or not grammar.definition:
        return ""
    return f"^(?:{grammar.definition})$"


def names_of(tools: Sequence[ToolBody] | None) -> frozenset[str]:
    """The names of the custom ones."""
    return frozenset(tool.called for tool in tools or [] if tool.type == TYPE)


def arguments_of(text: str) -> str:
    """The arguments of a call, as JSON."""
    return json.dumps({_INPUT: text}, ensure_ascii=False)


class InputText:
    """The text of a call out of its arguments, as they come."""

    def __init__(self) -> None:
        self._left = ""
        self._has_begun = False

    def add(self, arguments: str) -> str:
        """Return what a part of the arguments adds to the text."""
        self._left += arguments
        if not self._has_begun:
            begin = _BEGIN.match(self._left)
            if begin is None:
                return ""
            self._has_begun, self._left = True, self._left[begin.end() :]
        whole = _WHOLE.match(self._left)
        text = whole[0] if whole is not None else ""
        self._left = self._left[len(text) :]
        added = str(json.loads(f'"{text}"', strict=False))
        return added.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class ChatCalls:
    """Parts of a choice's calls, as chats have them.

    Args:
        customs: names of the custom tools.
    """

    def __init__(self, customs: frozenset[str]) -> None:
        self._customs = customs
        self._inputs: dict[int, InputText] = {}

    def to_json(self, call: inference_pb2.ToolCallDelta) -> Json:
        """A part of a call; the first one has the id and the name."""
        head: Json = {"index": call.index}
        if call.id and call.name in self._customs:
            self._inputs[call.index] = InputText()
        reader = self._inputs.get(call.index)
        kind = "function" if reader is None else TYPE
        said = {"arguments": call.arguments} if reader is None else {"input": reader.add(call.arguments)}
        if not call.id:
            return head | {kind: said}
        return head | {"id": call.id, "type": kind, kind: {"name": call.name, **said}}
