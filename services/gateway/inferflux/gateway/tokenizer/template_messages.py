"""Messages and tools as chat templates get them: in Hugging Face's form, nearly OpenAI's (pure)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from inferflux.common.text.chat_templates.conversation import Call, Message
from inferflux.common.text.chat_templates.templates import Json
from inferflux.gateway.request.tools import arguments_of
from inferflux.v1 import inference_pb2

from .control_texts import ControlTexts


def template_messages(
    messages: Iterable[inference_pb2.ChatMessage],
    controls: ControlTexts,
    *,
    looked_for: frozenset[str] = frozenset(),
    image: Callable[[], str] = str,
) -> list[Message]:
    """Messages of a conversation, with marks in what they spell of control tokens.

    Args:
        looked_for: texts that the template looks for in what the assistant said.
        image: gives the text that stands for the next image.
    """
    return [_message(message, controls, looked_for, image) for message in messages]


def template_tools(tools: Iterable[inference_pb2.Tool]) -> list[Json]:
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def described(tools: Iterable[Json]) -> list[Json]:
    """Tools with a description of each function and parameter, for templates that break down without."""
    return [{**tool, "function": _described(tool["function"])} for tool in tools]


def _message(
    message: inference_pb2.ChatMessage,
    controls: ControlTexts,
    looked_for: frozenset[str],
    image: Callable[[], str],
) -> Message:
    def mark(text: str) -> str:
        kept = looked_for if message.role == "assistant" else ()
        return controls.marked_but(text, kept)

    def part(each: inference_pb2.ContentPart) -> str:
        is_text = not (each.HasField("image") or each.HasField("audio"))
        return mark(each.text) if is_text else image()

    return Message(
        message.role,
        tuple(map(part, message.parts)) or (mark(message.content),),
        is_parts=bool(message.parts),
        has_media=any(each.HasField("image") or each.HasField("audio") for each in message.parts),
        thought=controls.marked(message.reasoning_content),
        calls=tuple(_call(call, controls) for call in message.tool_calls),
        name=controls.marked(message.name),
        call_id=controls.marked(message.tool_call_id),
    )


def _call(call: inference_pb2.ToolCall, controls: ControlTexts) -> Call:
    return Call(
        controls.marked(call.id),
        controls.marked(call.name),
        controls.marked(arguments_of(call.arguments)),
        controls.marked(call.arguments or "{}"),
    )


def _function(tool: inference_pb2.Tool) -> Json:
    made: Json = {"name": tool.name}
    if tool.description:
        made["description"] = tool.description
    given = json.loads(tool.parameters) if tool.parameters else None
    made["parameters"] = given or {"type": "object", "properties": {}}
    return made


def _described(function: Json) -> Json:
    schema: Any = function["parameters"]
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if isinstance(properties, dict):
        whole = {
            name: {"type": "any", "description": "", **each} if isinstance(each, dict) else each
            for name, each in properties.items()
        }
        schema = {"type": "object", "required": [], **schema, "properties": whole}
    return {"description": "", **function, "parameters": schema}
