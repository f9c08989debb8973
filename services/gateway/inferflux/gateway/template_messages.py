"""Messages and tools as chat templates get them: in Hugging Face's form, nearly OpenAI's (pure)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, TypeAlias

from inferflux.v1 import generation_pb2, inference_pb2

from .tools import arguments_of

Json: TypeAlias = dict[str, Any]

_MISTRAL = generation_pb2.TOOL_CALL_FORMAT_MISTRAL


def template_messages(
    messages: Iterable[inference_pb2.ChatMessage],
    form: generation_pb2.ToolCallFormat.ValueType,
    image: Callable[[], str] = str,
) -> list[Json]:
    """Messages of a conversation.

    Args:
        form: how the template spells calls. Mistral's take ids of 9 letters and digits alone, so theirs are
            made from those of the messages.
        image: gives the text that stands for the next image.
    """
    made = [_message(message, image, has_short_ids=form == _MISTRAL) for message in messages]
    names = {call["id"]: call["function"]["name"] for one in made for call in one.get("tool_calls", ())}
    for one in made:
        if one["role"] == "tool" and "name" not in one and one.get("tool_call_id") in names:
            one["name"] = names[one["tool_call_id"]]
    return made


def template_tools(tools: Iterable[inference_pb2.Tool]) -> list[Json]:
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def _message(message: inference_pb2.ChatMessage, image: Callable[[], str], *, has_short_ids: bool) -> Json:
    """Few templates know the role `developer`, which is the newer `system`."""
    of_id = _short_id if has_short_ids else str
    made: Json = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _content(message, image),
        "name": message.name,
        "tool_call_id": of_id(message.tool_call_id) if message.tool_call_id else "",
        "reasoning_content": message.reasoning_content,
        "tool_calls": [
            {
                "type": "function",
                "id": of_id(call.id),
                "function": {"name": call.name, "arguments": arguments_of(call.arguments)},
            }
            for call in message.tool_calls
        ],
    }
    return {key: value for key, value in made.items() if value or key in ("role", "content")}


def _content(message: inference_pb2.ChatMessage, image: Callable[[], str]) -> str:
    """Parts are lines."""
    if not message.parts:
        return message.content
    return "\n".join(
        image() if part.HasField("image") or part.HasField("audio") else part.text for part in message.parts
    )


def _function(tool: inference_pb2.Tool) -> Json:
    made: Json = {"name": tool.name}
    if tool.description:
        made["description"] = tool.description
    given = json.loads(tool.parameters) if tool.parameters else None
    made["parameters"] = given or {"type": "object", "properties": {}}
    return made


def _short_id(call_id: str) -> str:
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():
        return call_id
    return blake2b(call_id.encode(), digest_size=5).hexdigest()[:9]
