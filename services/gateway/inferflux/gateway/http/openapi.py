"""GET /openapi.json and /docs: what the front serves, for programs and for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic.json_schema import models_json_schema

from .exchange import Exchange, to_json
from .openai.bodies import (
    Body,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerateBody,
    ResponsesBody,
    TokenizeBody,
)
from .openapi_answers import ANSWERS

_JSON, _EVENTS, _TEXT = "application/json", "text/event-stream", "text/plain"
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
    "429": "A queue or a limit is full.",
    "499": "The request was cancelled.",
    "500": "A defect of the server.",
    "503": "Something that is needed is away.",
    "504": "Too late.",
}
_STRANGERS_REFUSALS = ("400", "405", "500")


@dataclass(frozen=True, slots=True)
class Operation:
    """One path as the documents name it.

    Attributes:
        answer: the schema of a JSON answer; "" for a plain text.
        body: None where there is none.
        streams: whether the answer can be a stream of events.
    """

    method: str
    path: str
    summary: str
    answer: str = ""
    body: type[Body] | None = None
    streams: bool = False
    needs_key: bool = True


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
    Operation("post", "/v1/tokenize", "Count and list the tokens of a prompt.", "Tokenized", TokenizeBody),
    Operation("post", "/v1/detokenize", "Give the text of token ids.", "Detokenized", DetokenizeBody),
    Operation("get", "/v1/models", "List the models that are served.", "Models"),
    Operation("get", "/v1/models/{model}", "Describe one model.", "Model"),
    Operation("get", "/healthz", "Whether the process answers.", needs_key=False),
    Operation("get", "/livez", "Whether the process answers.", needs_key=False),
    Operation("get", "/readyz", "Whether it can serve.", "Readiness", needs_key=False),
)


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    bodies = [operation.body for operation in OPERATIONS if operation.body is not None]
    _, schemas = models_json_schema([(body, "validation") for body in bodies], ref_template=_COMPONENTS)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "InferFlux", "version": _version(), "description": "OpenAI's API over HTTP."},
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas.get("$defs", {}) | ANSWERS,
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = (
        _json(operation.answer) if operation.answer else {_TEXT: {"schema": {"type": "string"}}}
    )
    if operation.streams:
        content[_EVENTS] = {"schema": _EVENT}
    codes = _REFUSALS if operation.needs_key else _STRANGERS_REFUSALS
    responses = {"200": {"description": "The answer.", "content": content}}
    responses |= {code: _refusal(code) for code in codes}
    if operation.path == "/readyz":
        responses["503"] = {"description": "It cannot serve now.", "content": content}
    made: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    if not operation.needs_key:
        made["security"] = []
    if operation.body is not None:
        made["requestBody"] = {"required": True, "content": _json(operation.body.__name__)}
    if "{model}" in operation.path:
        name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        made["parameters"] = [name]
    return made


def _refusal(code: str) -> dict[str, Any]:
    return {"description": _REFUSALS[code], "content": _json("Error")}


def _json(schema: str) -> dict[str, Any]:
    return {_JSON: {"schema": {"$ref": _COMPONENTS.format(model=schema)}}}


def _version() -> str:
    try:
        return version("inferflux-gateway")
    except PackageNotFoundError:  # an image has the sources alone
        return "0"


def page() -> str:
    """The paths and their fields as one page of HTML, which loads nothing else."""
    sections = "".join(map(_section, OPERATIONS))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>InferFlux</title>'
        "<style>body{font:16px/1.5 sans-serif;max-width:50em;margin:2em auto;padding:0 1em}"
        "code{background:#eee;padding:0 .2em}td{padding:0 1em 0 0;vertical-align:top}</style>"
        "<h1>InferFlux</h1><p>OpenAI's API over HTTP. Send a key as <code>Authorization: Bearer KEY</code>. "
        'Programs read <a href="/openapi.json">/openapi.json</a>.</p>'
        f"{sections}</html>"
    )


def _section(operation: Operation) -> str:
    schema = {} if operation.body is None else operation.body.model_json_schema()
    required = schema.get("required", [])
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{'needed' if name in required else ''}</td></tr>"
        for name in schema.get("properties", {})
    )
    head = f"{operation.method.upper()} {operation.path}"
    return f"<h2><code>{escape(head)}</code></h2><p>{escape(operation.summary)}</p><table>{rows}</table>"


class Documents:
    """Serves both."""

    def __init__(self) -> None:
        self._document = to_json(document())
        self._page = page().encode()

    async def openapi(self, exchange: Exchange) -> None:
        await exchange.answer(200, self._document, _JSON)

    async def docs(self, exchange: Exchange) -> None:
        await exchange.answer(200, self._page, "text/html; charset=utf-8")
