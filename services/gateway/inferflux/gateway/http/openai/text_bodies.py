"""Bodies of calls about texts: tokenize, detokenize, embeddings and rerank."""

from __future__ import annotations

from typing import Any, Literal

from inferflux.gateway.http.front.bodies import Body, Int32, Items

from .bodies import Message, ModelName, ToolBody


class TokenizeBody(Body):
    """The body of POST /v1/tokenize."""

    model: ModelName = ""
    prompt: str | None = None
    messages: Items[Message] | None = None
    tools: Items[ToolBody] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | Literal["content", "reasoning_content"] | None = None


class DetokenizeBody(Body):
    """The body of POST /v1/detokenize."""

    model: ModelName = ""
    tokens: Items[Int32]


class TextPart(Body):
    type: Literal["text"]
    text: str


class InputObject(Body):
    """An input as llama.cpp's server takes it: a text, or parts that are texts."""

    prompt_string: str | None = None
    content: Items[TextPart] | None = None


InputText = str | InputObject


class EmbeddingsBody(Body):
    """The body of POST /v1/embeddings. The last group is not OpenAI's."""

    model: ModelName = ""
    input: InputText | Items[Int32] | Items[InputText | Items[Int32]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Int32 | None = None

    truncate: bool | None = None
    priority: Int32 | None = None


class DocumentBody(Body):
    """A document as an object, as Cohere's and Jina's APIs take them."""

    text: str


class RerankBody(Body):
    """The body of POST /v1/rerank, in Jina's shape; with `texts` in that of text-embeddings-inference."""

    model: ModelName = ""
    query: str
    documents: Items[str | DocumentBody] | None = None
    texts: Items[str] | None = None
    top_n: Int32 | None = None
    return_documents: bool | None = None
    return_text: bool | None = None

    truncate: bool | None = None
    priority: Int32 | None = None
