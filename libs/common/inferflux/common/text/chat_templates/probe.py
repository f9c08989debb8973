"""A chat template's tools and the syntax of its model's answers (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferflux.common.contract.requests.answer_spelling import spelling_of
from inferflux.common.text.answers.families import FALLBACKS, FAMILIES, HERMES, family_in
from inferflux.v1 import generation_pb2

from .capabilities import Capabilities
from .derive import DESCRIPTION, USER, calling, syntax_of, tools_of
from .generic_tools import can_tell_tools
from .templates import ChatTemplate, TemplateError, TemplateRefusedError

_MOST_PROBED_BYTES = 1 << 20
_UNSPECIFIED, _OPTIONAL, _OPEN = (
    generation_pb2.REASONING_FORMAT_UNSPECIFIED,
    generation_pb2.REASONING_FORMAT_OPTIONAL,
    generation_pb2.REASONING_FORMAT_OPEN,
)
# How much of a prompt's end may belong to the answer.
_MOST_PREFIX = 64


@dataclass(frozen=True, slots=True)
class ToolSupport:
    """Support of a template for tools.

    Attributes:
        shows_tools: whether the template itself tells the model of them.
        are_told: whether it does, or a text of the system can: see `generic_tools`.
        syntax: how its model writes answers.
    """

    shows_tools: bool
    are_told: bool
    syntax: generation_pb2.AnswerSyntax

    @property
    def is_usable(self) -> bool:
        """True if a model is told of tools, and its calls can be read."""
        return self.are_told and self.syntax.HasField("calls")


def tool_support(template: ChatTemplate) -> ToolSupport:
    """Render known messages, some of which the template may refuse: some fifteen times."""

    def render(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str | None:
        try:
            return template.render(messages, tools)
        except (TemplateError, TemplateRefusedError):
            return None

    tools = tools_of()
    shows_tools = any(
        DESCRIPTION in (render(messages, tools) or "")
        for messages in ([USER], [USER, calling({})], [{"role": "system", "content": "Hi"}, USER])
    )
    syntax = family_in(template.source, FAMILIES)
    if syntax is None or not syntax.HasField("thought"):
        syntax = _with_calls(syntax_of(render, template.source), syntax, template.source)
    made = _completed(syntax, template.source)
    if shows_tools:
        return ToolSupport(True, True, made)
    reads = Capabilities(template)
    if not reads.shows_calls:
        made.calls.CopyFrom(HERMES.calls)
    return ToolSupport(False, can_tell_tools(reads), made)


def _with_calls(
    derived: generation_pb2.AnswerSyntax, family: generation_pb2.AnswerSyntax | None, source: str
) -> generation_pb2.AnswerSyntax:
    """With the calls of the family, or of a known one where what was derived is none."""
    made = generation_pb2.AnswerSyntax()
    made.CopyFrom(derived)
    if family is not None:
        made.Clear()
        if derived.HasField("thought"):
            made.thought.CopyFrom(derived.thought)
        made.MergeFrom(family)
        return made
    if made.HasField("calls") and not _is_spelling(made.calls):
        made.ClearField("calls")
    if not made.HasField("calls") and (fallback := family_in(source, FALLBACKS)) is not None:
        made.calls.CopyFrom(fallback.calls)
    return made


def _is_spelling(calls: generation_pb2.CallSyntax) -> bool:
    try:
        spelling_of(calls)
    except (ValueError, RecursionError):
        return False
    return True


def _completed(syntax: generation_pb2.AnswerSyntax, source: str) -> generation_pb2.AnswerSyntax:
    """With markers that no message shows."""
    made = generation_pb2.AnswerSyntax()
    made.CopyFrom(syntax)
    if made.calls.is_whole_answer and "<|python_tag|>" in source:
        made.calls.optional_begins.append("<|python_tag|>")
    if "[BEGIN FINAL RESPONSE]" in made.thought.end:
        made.noise.append("[END FINAL RESPONSE]")
    return made


def support_of(source: str, tokens: dict[str, str]) -> ToolSupport | None:
    """Find out what a template does with tools; None where it is none.

    Args:
        source: of the template for tools, where a model has one of its own.
        tokens: as `ChatTemplate` takes them.
    """
    try:
        return tool_support(ChatTemplate(source, tokens=tokens, max_rendered_bytes=_MOST_PROBED_BYTES).trial)
    except TemplateError:
        return None


def reasoning_of(
    syntax: generation_pb2.AnswerSyntax, prompt: str
) -> generation_pb2.ReasoningFormat.ValueType:
    """Reasoning format of the answer to a rendered prompt: the part of it that may be reasoning."""
    begin, end = syntax.thought.begin.strip(), syntax.thought.end.strip()
    if not end:
        return _UNSPECIFIED
    rest = prompt[-256:].rstrip()
    if not begin:
        return _OPEN
    # What ends a thought that is a message ends every message.
    if rest.endswith(end) and not syntax.HasField("channels"):
        return _UNSPECIFIED
    return _OPEN if rest.endswith(begin) else _OPTIONAL


def prefix_of(syntax: generation_pb2.AnswerSyntax, prompt: str) -> str:
    """The end of a prompt where the answer's spelling begins there."""
    if syntax.HasField("channels"):
        begin = max(prompt.rfind(one) for one in syntax.channels.begins)
        is_open = begin >= 0 and syntax.channels.header_end not in prompt[begin:]
        return prompt[begin:] if is_open and len(prompt) - begin <= _MOST_PREFIX else ""
    if syntax.calls.call.startswith(">>>") and prompt.endswith(">>>"):
        return ">>>"
    return ""
