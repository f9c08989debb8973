"""The paths of the HTTP front, and what serves each."""

from __future__ import annotations

import time
from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from inferflux.common.audit.writer import AuditTrail
from inferflux.common.errors import NotFound
from inferflux.common.grpc_metadata import PRIORITY, REQUEST_ID
from inferflux.common.probe import Probe
from inferflux.gateway.metrics import GatewayMetrics
from inferflux.gateway.models import ModelRegistry
from inferflux.gateway.pipeline import Pipeline

from .answering import Answering
from .chat import ChatCompletions
from .completions import Completions
from .endpoint import Edge, Endpoint, Handler, OpenEndpoint, OpenHandler, guarded
from .exchange import Exchange
from .generate import Generate
from .models import GetModel, ListModels
from .openapi import Documents
from .responses import Responses
from .tokens import Detokenize, Tokenize
from .websocket import WebSocketEndpoint

# How long browsers keep the answer to a preflight.
_PREFLIGHT_S = 600


def build_app(
    pipeline: Pipeline,
    models: ModelRegistry,
    metrics: GatewayMetrics,
    probe: Probe,
    trail: AuditTrail,
    *,
    cors_origins: Sequence[str],
    send_limit_s: float,
) -> ASGIApp:
    """The application.

    Args:
        cors_origins: whose pages may call from a browser; `*` is any.
        send_limit_s: how long a client may take nothing.
    """
    edge = Edge(pipeline.admit, metrics, trail, send_limit_s=send_limit_s)
    created = int(time.time())
    answering = Answering(pipeline)
    documents = Documents()

    def route(method: str, path: str, scope: str, handle: Handler) -> Route:
        return Route(path, Endpoint(edge, path, method, scope, handle))

    def open_route(path: str, handle: OpenHandler) -> Route:
        return Route(path, OpenEndpoint(handle))

    router = Router(
        [
            route("POST", "/v1/chat/completions", "inference", ChatCompletions(answering)),
            route("POST", "/v1/completions", "inference", Completions(pipeline, answering)),
            route("POST", "/v1/responses", "inference", Responses(answering)),
            route("POST", "/generate", "inference", Generate(answering, models)),
            WebSocketRoute("/generate", WebSocketEndpoint(edge, answering, models)),
            route("POST", "/v1/tokenize", "inference", Tokenize(pipeline)),
            route("POST", "/v1/detokenize", "inference", Detokenize(pipeline)),
            route("GET", "/v1/models", "models", ListModels(models, created)),
            route("GET", "/v1/models/{model:path}", "models", GetModel(models, created)),
            open_route("/openapi.json", documents.openapi),
            open_route("/docs", documents.docs),
            open_route("/healthz", _is_alive),
            open_route("/livez", _is_alive),
            open_route("/readyz", _Readiness(probe)),
        ],
        redirect_slashes=False,
        default=_Default(),
    )
    return CORSMiddleware(
        router,
        allow_origins=cors_origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        expose_headers=(REQUEST_ID, PRIORITY, "retry-after"),
        max_age=_PREFLIGHT_S,
    )


async def _is_alive(exchange: Exchange) -> None:
    await exchange.answer(200, b"ok\n", "text/plain; charset=utf-8")


class _Readiness:
    """As the probe's port says it."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    async def __call__(self, exchange: Exchange) -> None:
        status, content_type, body = self._probe.answer("/readyz", "")
        await exchange.answer(status, body, content_type)


class _Default:
    """What answers on paths that are not there."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        exchange = Exchange(scope, receive, send)
        await guarded(exchange, scope["path"], _no_such_path(exchange))


async def _no_such_path(exchange: Exchange) -> None:
    exchange.begin()
    raise NotFound("there is no such path", reason="UNKNOWN_PATH")
