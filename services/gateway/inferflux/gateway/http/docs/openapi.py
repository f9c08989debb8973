"""GET /openapi.json: what the front serves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from google.protobuf.descriptor import Descriptor, MethodDescriptor
from pydantic.json_schema import models_json_schema

from inferflux.gateway.grpc.rules import ADMIN_METHODS
from inferflux.gateway.http.anthropic.bodies import MessagesBody, PromptBody
from inferflux.gateway.http.front import routes
from inferflux.gateway.http.front.bodies import Body
from inferflux.gateway.http.front.exchange import Exchange, to_json
from inferflux.gateway.http.ollama.bodies import (
    OllamaChatBody,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaGenerateBody,
    OllamaShowBody,
)
from inferflux.gateway.http.openai.bodies import ChatBody, CompletionBody, GenerateBody, ResponsesBody
from inferflux.gateway.http.openai.text_bodies import DetokenizeBody, EmbeddingsBody, RerankBody, TokenizeBody

from .openapi_answers import ANSWERS
from .openapi_fields import EXAMPLES, described, example_of, served_alone
from .openapi_messages import answer_name, body_name, schemas

_JSON, _TEXT = "application/json", "text/plain"
_EVENTS, _LINES = "text/event-stream", "application/x-ndjson"
_COMPONENTS = "#/components/schemas/{model}"
# Each event of a stream.
_EVENT: dict[str, Any] = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
_REFUSALS = {
    "400": "A value is wrong or not supported.",
    "401": "There is no key, or an unknown one.",
    "403": "The key lacks the scope.",
    "404": "There is no such model.",
    "405": "Another method is needed.",
    "409": "The request id is taken.",
    "413": "The body has too many bytes, values or names.",
    "422": "The complete answer breaks a part of its schema that cannot be enforced.",
    "429": "A queue or a limit is full.",
    "499": "The request was cancelled.",
    "500": "A defect of the server.",
    "503": "Something that is needed is away.",
    "504": "Too late.",
}
_SOCKET = (
    "A websocket at the same path takes such a body as a message, and answers with a message for each chunk."
)
_STRANGERS_REFUSALS = ("400", "405", "500")


@dataclass(frozen=True, slots=True)
class Operation:
    """One path as the documents name it.

    Attributes:
        answer: the schema of a JSON answer; "" for a plain text, or events alone.
        body: what it takes, as JSON or as a message in protobuf's JSON; None where there is none.
        streams: whether the answer can be a stream.
        stream_type: the type of the stream.
        error: the schema of a refusal.
    """

    method: str
    path: str
    summary: str
    answer: str = ""
    body: type[Body] | Descriptor | None = None
    streams: bool = False
    needs_key: bool = True
    error: str = "Error"
    stream_type: str = _EVENTS


def _words(name: str) -> str:
    """`Set rate limit` of SetRateLimit."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()


def _of_administrators(method: MethodDescriptor) -> Operation:
    streams = method.server_streaming
    return Operation(
        "post",
        routes.ADMIN[method.name].path,
        f"{_words(method.name)}: the method of {method.containing_service.name}.",
        "" if streams else answer_name(method.output_type),
        method.input_type,
        streams=streams,
    )


def _of_ollama() -> Iterator[Operation]:
    """In the shape of Ollama's API."""
    posts: Sequence[tuple[str, str, str, type[Body]]] = (
        ("chat", "Answer a conversation", "OllamaAnswer", OllamaChatBody),
        ("generate", "Answer or continue a prompt", "OllamaAnswer", OllamaGenerateBody),
        ("embed", "Give vectors of texts", "OllamaVectors", OllamaEmbedBody),
        ("embeddings", "Give the vector of a text", "OllamaVector", OllamaEmbeddingsBody),
        ("show", "Describe one model", "OllamaModel", OllamaShowBody),
    )
    gets = (("tags", "List the models"), ("ps", "List the models that are served"))
    for name, summary, answer, body in posts:
        yield Operation(
            "post",
            f"/api/{name}",
            f"{summary}, in the shape of Ollama's API.",
            answer,
            body,
            streams=answer == "OllamaAnswer",
            error="OllamaError",
            stream_type=_LINES,
        )
    for name, summary in gets:
        summary = f"{summary}, in the shape of Ollama's API."
        yield Operation("get", f"/api/{name}", summary, "OllamaModels", error="OllamaError")
    summary = "Which version of Ollama's API is spoken."
    yield Operation("get", "/api/version", summary, "OllamaVersion", needs_key=False, error="OllamaError")


OPERATIONS: Sequence[Operation] = (
    Operation(
        "post", "/v1/chat/completions", "Answer a conversation.", "ChatCompletion", ChatBody, streams=True
    ),
    Operation("post", "/v1/completions", "Continue prompts.", "Completion", CompletionBody, streams=True),
    Operation(
        "post",
        "/v1/responses",
        "Answer an input; nothing is stored.",
        "Response",
        ResponsesBody,
        streams=True,
    ),
    Operation(
        "post", "/generate", "Stream the token chunks of a prompt.", "Generated", GenerateBody, streams=True
    ),
    Operation(
        "post",
        "/v1/messages",
        "Answer a conversation, in the shape of Anthropic's API.",
        "MessageAnswer",
        MessagesBody,
        streams=True,
        error="MessageError",
    ),
    Operation(
        "post",
        "/v1/messages/count_tokens",
        "Count the tokens of a conversation.",
        "Counted",
        PromptBody,
        error="MessageError",
    ),
    Operation("post", "/v1/embeddings", "Give vectors of texts.", "Embeddings", EmbeddingsBody),
    Operation(
        "post", "/v1/rerank", "Order documents by how well they answer a query.", "Ranking", RerankBody
    ),
    Operation("post", "/v1/tokenize", "Count and list the tokens of a prompt.", "Tokenized", TokenizeBody),
    Operation("post", "/v1/detokenize", "Give the text of token ids.", "Detokenized", DetokenizeBody),
    Operation(
        "get", "/v1/models", "List the models that are served, and those that a request has loaded.", "Models"
    ),
    Operation("get", "/v1/models/{model}", "Describe one model.", "Model"),
    *_of_ollama(),
    Operation("get", "/healthz", "Whether something is wrong, and what.", "Health", needs_key=False),
    Operation("get", "/livez", "Whether the process answers.", "Health", needs_key=False),
    Operation("get", "/readyz", "Whether it can serve.", "Readiness", needs_key=False),
    *map(_of_administrators, ADMIN_METHODS),
)


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    bodies = [operation.body for operation in OPERATIONS if isinstance(operation.body, type)]
    _, made = models_json_schema([(body, "validation") for body in bodies], ref_template=_COMPONENTS)
    named = made.get("$defs", {})
    named = {name: served_alone(name, schema) for name, schema in named.items()}
    named |= {body.__name__: described(body, named[body.__name__]) for body in bodies}
    messages = schemas((m.input_type for m in ADMIN_METHODS), (m.output_type for m in ADMIN_METHODS))
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "InferFlux",
            "version": _version(),
            "description": "The APIs of OpenAI, Anthropic and Ollama over HTTP.",
        },
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": named | ANSWERS | messages,
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = _json(operation.answer) if operation.answer else {}
    if operation.streams:
        content[operation.stream_type] = {"schema": _EVENT} if operation.stream_type == _EVENTS else {}
    content = content or {_TEXT: {"schema": {"type": "string"}}}
    codes = _REFUSALS if operation.needs_key else _STRANGERS_REFUSALS
    responses = {"200": {"description": "The answer.", "content": content}}
    responses |= {code: _refusal(code, operation.error) for code in codes}
    if operation.path == "/readyz":
        responses["503"] = {"description": "It cannot serve now.", "content": content}
    made: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    if operation.path == routes.GENERATE.path:
        made["description"] = _SOCKET
    if not operation.needs_key:
        made["security"] = []
    if isinstance(operation.body, type):
        content = _json(operation.body.__name__, EXAMPLES[operation.path])
        made["requestBody"] = {"required": True, "content": content}
    elif operation.body is not None:
        content = _json(body_name(operation.body), example_of(operation.body))
        made["requestBody"] = {"required": False, "content": content}
    if "{model}" in operation.path:
        name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        made["parameters"] = [name]
    return made


def _refusal(code: str, schema: str) -> dict[str, Any]:
    return {"description": _REFUSALS[code], "content": _json(schema)}


def _json(schema: str, example: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"schema": {"$ref": _COMPONENTS.format(model=schema)}}
    return {_JSON: found if example is None else found | {"example": example}}


def _version() -> str:
    try:
        return version("inferflux-gateway")
    except PackageNotFoundError:  # an image has the sources alone
        return "0"


class Documents:
    """Serves the document."""

    def __init__(self) -> None:
        self._document = to_json(document())

    async def openapi(self, exchange: Exchange) -> None:
        await exchange.answer(200, self._document, _JSON)
