"""Bodies of Anthropic's API as they come. `cache_control` is ignored, and so are fields of no API."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from inferflux.gateway.http.front.bodies import Body, Int32, Items
from inferflux.gateway.http.openai.bodies import OwnFields, Seed


class Source(Body):
    """The source of an image or a document."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    content: str | Items[Block] | None = None


class Block(Body):
    """A part of a message, of a tool's result, or of the system prompt."""

    type: str
    text: str | None = None
    thinking: str | None = None
    source: Source | str | None = None
    title: str | None = None
    context: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    # Blocks of hosted tools have objects.
    content: str | Items[Block] | dict[str, Any] | None = None
    is_error: bool | None = None


class MessageParam(Body):
    role: str
    content: str | Items[Block]


class ToolParam(Body):
    """A function of the client; with another type a tool that Anthropic has defined."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoiceParam(Body):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    type: str
    budget_tokens: Int32 | None = None


class OutputFormat(Body):
    type: str
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class OutputConfig(Body):
    effort: str | None = None
    format: OutputFormat | None = None


class PromptBody(Body):
    """The body of POST /v1/messages/count_tokens."""

    model: str = ""
    messages: Items[MessageParam]
    system: str | Items[Block] | None = None
    tools: Items[ToolParam] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    # The former place of the format.
    output_format: OutputFormat | None = None


class MessagesBody(PromptBody, OwnFields):
    """The body of POST /v1/messages. Fields of other APIs are kept for `served.MESSAGE`."""

    model_config = ConfigDict(extra="allow")

    max_tokens: Int32
    stream: bool | None = None
    stop_sequences: Items[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    metadata: dict[str, Any] | None = None

    # It is not Anthropic's.
    seed: Seed | None = None
