"""Messages of a conversation, as OpenAI's API has them, to ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inferflux.gateway.http.errors import missing, unsupported
from inferflux.v1 import inference_pb2

from .bodies import Message, Part
from .tools import to_calls

_TYPES = ("text",)


def to_message(message: Message, index: int) -> inference_pb2.ChatMessage:
    """Message number `index` of a conversation.

    Raises:
        InvalidArgument: it has neither content nor calls, or a part that is no text.
    """
    field = f"messages[{index}]"
    if message.function_call is not None:
        raise unsupported(f"{field}.function_call", "it is not supported: use tool_calls")
    if message.content is None and not message.tool_calls:
        raise missing(f"{field}.content")
    return inference_pb2.ChatMessage(
        role=message.role,
        content=text_of(message.content or "", f"{field}.content", types=_TYPES),
        name=message.name or "",
        tool_call_id=message.tool_call_id or "",
        tool_calls=to_calls(message.tool_calls, f"{field}.tool_calls"),
        reasoning_content=message.reasoning_content or "",
    )


def field_names(messages: Sequence[Message]) -> Mapping[str, str]:
    """What clients call the fields of calls."""
    names: dict[str, str] = {}
    for i, message in enumerate(messages):
        for j in range(len(message.tool_calls or ())):
            call = f"messages[{i}].tool_calls[{j}]"
            names |= {f"{call}.{name}": f"{call}.function.{name}" for name in ("name", "arguments")}
    return names


def text_of(content: str | Sequence[Part], field: str, *, types: Sequence[str]) -> str:
    """The text of a content: several parts are lines.

    Args:
        types: those that parts of a text may have.

    Raises:
        InvalidArgument: a part is no text.
    """
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for i, part in enumerate(content):
        where = f"{field}[{i}]"
        if part.type not in types:
            known = ", ".join(map(repr, types))
            raise unsupported(f"{where}.type", f"{part.type[:32]!r} is not supported, only {known}")
        if part.text is None:
            raise missing(f"{where}.text")
        texts.append(part.text)
    return "\n".join(texts)
