"""Bodies of Ollama's API as they come. Other fields are ignored, also options of how a model is loaded."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from inferflux.gateway.http.front.bodies import Body, Int32, Items
from inferflux.gateway.http.openai.bodies import OwnFields, ToolBody


class OllamaOptions(OwnFields):
    num_predict: Int32 | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | Items[str] | None = None
    repeat_last_n: Int32 | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    mirostat: Int32 | None = None


class OllamaPromptBody(OwnFields):
    """The fields that chats and continuations have in common. Fields of other APIs are kept for
    `served.OLLAMA`."""

    model_config = ConfigDict(extra="allow")

    model: str = ""
    # JSON, or a schema; an empty text is none.
    format: str | dict[str, Any] | None = None
    options: OllamaOptions | None = None
    # They stream unless it is false.
    stream: bool | None = None
    think: bool | str | None = None
    keep_alive: float | str | None = None
    logprobs: bool | None = None
    top_logprobs: Int32 | None = None


class OllamaFunction(Body):
    name: str
    arguments: dict[str, Any] | None = None


class OllamaCall(Body):
    id: str | None = None
    function: OllamaFunction


class OllamaMessage(Body):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: Items[str] | None = None
    tool_calls: Items[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatBody(OllamaPromptBody):
    """The body of POST /api/chat."""

    messages: Items[OllamaMessage] | None = None
    tools: Items[ToolBody] | None = None


class OllamaGenerateBody(OllamaPromptBody):
    """The body of POST /api/generate."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    images: Items[str] | None = None
    raw: bool | None = None
    template: str | None = None
    context: Items[Int32] | None = None


class OllamaEmbedBody(Body):
    """The body of POST /api/embed."""

    model: str = ""
    input: str | Items[str]
    truncate: bool | None = None
    dimensions: Int32 | None = None


class OllamaEmbeddingsBody(Body):
    """The body of POST /api/embeddings, the older one."""

    model: str = ""
    prompt: str


class OllamaShowBody(Body):
    """The body of POST /api/show."""

    model: str = ""
    # The older name of the field.
    name: str = ""
