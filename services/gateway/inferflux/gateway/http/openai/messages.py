"""Messages of a conversation, as OpenAI's API has them, to ours."""

from __future__ import annotations

from inferflux.common.errors import InvalidArgument
from inferflux.gateway.http.errors import unsupported
from inferflux.v1 import inference_pb2

from .bodies import Message
from .tools import to_calls


def to_message(message: Message, index: int) -> inference_pb2.ChatMessage:
    """Message number `index` of a conversation.

    Raises:
        InvalidArgument: it has neither content nor calls, or a part that is no text.
    """
    field = f"messages[{index}]"
    if message.function_call:
        raise unsupported(f"{field}.function_call")
    if message.content is None and not message.tool_calls:
        raise InvalidArgument(f"{field}.content is missing", field=f"{field}.content")
    return inference_pb2.ChatMessage(
        role=message.role,
        content=_text(message, field),
        name=message.name or "",
        tool_call_id=message.tool_call_id or "",
        tool_calls=to_calls(message.tool_calls, f"{field}.tool_calls"),
        reasoning_content=message.reasoning_content or "",
    )


def _text(message: Message, field: str) -> str:
    """The text of a message: several parts are lines."""
    if isinstance(message.content, str):
        return message.content
    texts: list[str] = []
    for i, part in enumerate(message.content or []):
        where = f"{field}.content[{i}]"
        if part.type != "text":
            raise unsupported(f"{where}.type", f"{part.type[:32]!r} is not supported, only 'text' is")
        if part.text is None:
            raise InvalidArgument(f"{where}.text is missing", field=f"{where}.text")
        texts.append(part.text)
    return "\n".join(texts)
