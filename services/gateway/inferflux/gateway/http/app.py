"""The paths of the HTTP front, and what serves each."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from inferflux.common.calls.audit.writer import AuditTrail
from inferflux.common.calls.grpc_metadata import DECISION, GUARDRAIL, PRIORITY, REQUEST_ID
from inferflux.common.contract.callers.rate_limits import HEADERS
from inferflux.common.contract.errors import NotFound
from inferflux.common.process.probe import Probe
from inferflux.gateway.grpc.rules import ADMIN_RULES
from inferflux.gateway.metrics import GatewayMetrics
from inferflux.gateway.models.models import ModelRegistry
from inferflux.gateway.operator.admin_methods import AdminMethod
from inferflux.gateway.request.embeddings import Embeddings
from inferflux.gateway.request.pipeline import Pipeline

from .docs.openapi import Documents
from .front import routes
from .front.endpoint import Admit, Edge, Endpoint, Handler, OpenEndpoint, OpenHandler, guarded
from .front.exchange import Exchange
from .front.routes import RouteRule
from .llama_server import handlers as llama
from .ollama.bodies import OllamaEmbedBody, OllamaEmbeddingsBody
from .ollama.front import (
    OllamaChat,
    OllamaEmbed,
    OllamaGenerate,
    OllamaModels,
    OllamaShow,
    tell_version,
)
from .paths import home_page
from .paths.admin import AdminCall
from .paths.answering import Answering
from .paths.chat import ChatCompletions, Generate, Responses
from .paths.completions import Completions
from .paths.embeddings import CreateEmbeddings, Rerank
from .paths.messages import SKIPPED, CountTokens, Messages
from .paths.models import GetModel, ListModels
from .paths.reading import BodyReader
from .paths.tokens import Detokenize, Tokenize
from .paths.transcriptions import Transcriptions
from .paths.websocket import WebSocketEndpoint, deny_handshake

# How long browsers keep the answer to a preflight.
_PREFLIGHT_S = 600
# Of a path that is not there.
_SHOWN = 100
# What Ollama's clients call to have models changed.
_OF_OLLAMAS_STORE = tuple(f"/api/{name}" for name in ("blobs", "copy", "create", "delete", "pull", "push"))
_PATHS = frozenset(rule.path for rule in routes.ROUTES)


def build_app(
    pipeline: Pipeline,
    embeddings: Embeddings,
    models: ModelRegistry,
    admit: Admit,
    metrics: GatewayMetrics,
    probe: Probe,
    trail: AuditTrail,
    admin: Sequence[AdminMethod],
    *,
    cors_origins: Sequence[str],
) -> ASGIApp:
    """The application.

    Args:
        admin: what administrators call.
        cors_origins: whose pages may call from a browser; `*` is any.
    """
    edge = Edge(admit, metrics, trail)
    created = int(time.time())
    answering, tokens = Answering(pipeline), pipeline.tokens
    bodies = BodyReader(models)
    documents = Documents()

    def route(rule: RouteRule, handle: Handler) -> Route:
        return Route(rule.path, Endpoint(edge, rule, handle))

    def open_route(rule: RouteRule, handle: OpenHandler) -> Route:
        return Route(rule.path, OpenEndpoint(handle))

    def admin_route(method: AdminMethod) -> Route:
        limit = ADMIN_RULES[method.path].max_body_bytes
        return route(routes.ADMIN[method.name], AdminCall(method, max_message_bytes=limit))

    handlers: dict[RouteRule, Handler] = {
        routes.CHAT: ChatCompletions(answering, bodies),
        routes.COMPLETIONS: Completions(tokens, answering, bodies),
        routes.RESPONSES: Responses(answering, bodies),
        routes.GENERATE: Generate(answering, bodies),
        routes.MESSAGES: Messages(answering, bodies),
        routes.COUNT_TOKENS: CountTokens(tokens, bodies),
        routes.TRANSCRIPTIONS: Transcriptions(answering, bodies),
        routes.EMBEDDINGS: CreateEmbeddings(embeddings, bodies),
        routes.RERANK: Rerank(embeddings, bodies),
        routes.TOKENIZE: Tokenize(tokens, bodies),
        routes.DETOKENIZE: Detokenize(tokens, bodies),
        routes.LIST_MODELS: ListModels(models, created),
        routes.GET_MODEL: GetModel(models, created),
        routes.LLAMA_COMPLETION: llama.Completion(answering, bodies),
        routes.LLAMA_CHAT_TOKENS: llama.CountChatTokens(tokens, bodies),
        routes.LLAMA_INFILL: llama.Completion(answering, bodies, is_infill=True),
        routes.LLAMA_TOKENIZE: llama.Tokenize(tokens, bodies),
        routes.LLAMA_DETOKENIZE: Detokenize(tokens, bodies, names=("content", "prompt")),
        routes.LLAMA_TEMPLATE: llama.ApplyTemplate(tokens, bodies),
        routes.LLAMA_PROPS: llama.Props(tokens, models),
        routes.TOKENIZER_INFO: llama.TokenizerInfo(tokens, models),
        routes.LLAMA_SLOTS: llama.refuse_slots,
        routes.METRICS: llama.Metrics(probe),
    }
    handlers |= {alias: handlers[rule] for alias, rule in routes.ALIASES.items()}
    router = Router(
        [
            *(route(rule, handle) for rule, handle in handlers.items()),
            WebSocketRoute(routes.GENERATE_SOCKET.path, WebSocketEndpoint(edge, answering, bodies)),
            route(routes.OLLAMA_CHAT, OllamaChat(answering, models, bodies)),
            route(routes.OLLAMA_GENERATE, OllamaGenerate(answering, models, bodies)),
            route(routes.OLLAMA_EMBED, OllamaEmbed(embeddings, bodies, OllamaEmbedBody)),
            route(routes.OLLAMA_EMBEDDINGS, OllamaEmbed(embeddings, bodies, OllamaEmbeddingsBody)),
            route(routes.OLLAMA_SHOW, OllamaShow(models, created)),
            route(routes.OLLAMA_TAGS, OllamaModels(models, created, is_running=False)),
            route(routes.OLLAMA_PS, OllamaModels(models, created, is_running=True)),
            open_route(routes.OLLAMA_VERSION, tell_version),
            open_route(routes.HOME, home_page.home),
            open_route(routes.HEALTH, llama.Health(probe)),
            open_route(routes.V1_HEALTH, llama.Health(probe)),
            open_route(routes.OPENAPI, documents.openapi),
            open_route(routes.HEALTHZ, _Probed(probe, routes.HEALTHZ.path)),
            open_route(routes.LIVEZ, _Probed(probe, routes.LIVEZ.path)),
            open_route(routes.READYZ, _Probed(probe, routes.READYZ.path)),
            *map(admin_route, admin),
        ],
        redirect_slashes=False,
        default=_Default(),
    )
    return CORSMiddleware(
        router,
        allow_origins=cors_origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        expose_headers=(REQUEST_ID, SKIPPED, PRIORITY, GUARDRAIL, DECISION, "retry-after", *HEADERS),
        max_age=_PREFLIGHT_S,
    )


class _Probed:
    """As the probe's port says it."""

    def __init__(self, probe: Probe, path: str) -> None:
        self._probe = probe
        self._path = path

    async def __call__(self, exchange: Exchange) -> None:
        status, content_type, body = self._probe.answer(self._path, "")
        await exchange.answer(status, body, content_type)


class _Default:
    """Answers on paths that are not there."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await deny_handshake(send, _no_path(scope["path"]))
            return
        exchange = Exchange(scope, receive, send)
        await guarded(exchange, scope["path"], _no_such_path(exchange, scope["path"]))


async def _no_such_path(exchange: Exchange, path: str) -> None:
    exchange.begin()
    raise _no_path(path)


def _no_path(path: str) -> NotFound:
    """Says what is there: clients are often given an address without `/v1`, or with it twice."""
    if path.startswith(_OF_OLLAMAS_STORE):
        message = f"{path[:_SHOWN]}: models are pulled and removed by administrators: `inferctl pull`"
        return NotFound(message, reason="UNKNOWN_PATH")
    bare = re.sub(r"^(/v1)+(?=/)", "", path).rstrip("/")
    meant = next((known for known in (f"/v1{bare}", bare) if known in _PATHS), None)
    hint = f"did you mean {meant}?" if meant else "/openapi.json lists those that are there"
    return NotFound(f"there is no path {path[:_SHOWN]!r}: {hint}", reason="UNKNOWN_PATH")
