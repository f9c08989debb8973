"""How a chat template spells tools, calls and reasoning, found by rendering a call (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from inferflux.common.answers.syntax import END_THINK, THINK
from inferflux.v1 import generation_pb2

from .templates import ChatTemplate, TemplateError, TemplateRefusedError

_NAME = "probe_function"
_DESCRIPTION = "A function that probes."
_RESULT = "the result"

_MOST_PROBED_BYTES = 1 << 20

_TOOL: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": _DESCRIPTION,
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
    },
}
_CALL: Final[Mapping[str, Any]] = {
    "type": "function",
    "id": "aB3dEf6h9",
    "function": {"name": _NAME, "arguments": {"x": 1}},
}
_CONVERSATION: Final[tuple[Mapping[str, Any], ...]] = (
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "name": _NAME, "tool_call_id": "aB3dEf6h9", "content": _RESULT},
)

_HEADER = r'\{\s*"name"\s*:\s*"probe_function"\s*,\s*'
_SPELLINGS: Final = (
    (generation_pb2.TOOL_CALL_FORMAT_HERMES, re.compile(rf'<tool_call>\s*{_HEADER}"arguments"\s*:\s*\{{')),
    (
        generation_pb2.TOOL_CALL_FORMAT_MISTRAL,
        re.compile(rf'\[TOOL_CALLS\]\s*\[\s*{_HEADER}"arguments"\s*:\s*\{{'),
    ),
    (generation_pb2.TOOL_CALL_FORMAT_LLAMA3, re.compile(rf'(?<!\[){_HEADER}"parameters"\s*:\s*\{{')),
)


@dataclass(frozen=True, slots=True)
class ToolSupport:
    """What a template does with tools.

    Attributes:
        shows_tools: whether the model is told of them.
        call_format: how calls are spelled; unspecified where that is not known.
    """

    shows_tools: bool
    call_format: generation_pb2.ToolCallFormat.ValueType

    @property
    def is_usable(self) -> bool:
        """Whether a model is told of tools, and its calls can be read."""
        return self.shows_tools and self.call_format != generation_pb2.TOOL_CALL_FORMAT_UNSPECIFIED


def tool_support(template: ChatTemplate) -> ToolSupport:
    """Render a call with and without its result: some templates refuse one of both."""
    shows_tools = False
    for messages in (_CONVERSATION, _CONVERSATION[:2], _CONVERSATION[:1]):
        try:
            text = template.render(messages, [_TOOL])
        except (TemplateError, TemplateRefusedError):
            continue
        shows_tools |= _DESCRIPTION in text
        for form, spelling in _SPELLINGS:
            if spelling.search(text):
                return ToolSupport(shows_tools, form)
    return ToolSupport(shows_tools, generation_pb2.TOOL_CALL_FORMAT_UNSPECIFIED)


def calls_tools(source: str, tokens: dict[str, str]) -> bool:
    """Whether requests may have tools with a template.

    Args:
        source: of the template for tools, where a model has one of its own.
        tokens: as `ChatTemplate` takes them.
    """
    try:
        support = tool_support(ChatTemplate(source, tokens=tokens, max_rendered_bytes=_MOST_PROBED_BYTES))
    except TemplateError:
        return False
    return support.is_usable


def reasoning_of(template: ChatTemplate, prompt: str) -> generation_pb2.ReasoningFormat.ValueType:
    """What of the answer to a rendered prompt may be reasoning."""
    if END_THINK not in template.source:
        return generation_pb2.REASONING_FORMAT_UNSPECIFIED
    end = prompt[-64:].rstrip()
    if end.endswith(THINK):
        return generation_pb2.REASONING_FORMAT_OPEN
    if end.endswith(END_THINK):
        return generation_pb2.REASONING_FORMAT_UNSPECIFIED
    return generation_pb2.REASONING_FORMAT_OPTIONAL
