"""The paths of the HTTP front, and what each asks of its callers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from google.protobuf.descriptor import MethodDescriptor

from inferflux.common.contract.callers.scopes import Scope
from inferflux.gateway.grpc.rules import ADMIN_METHODS, ADMIN_RULES

MAX_BODY_BYTES = 16 << 20
# JSON spells a message in more bytes than protobuf: it has names, quotes and escapes.
_JSON_FACTOR = 4


@dataclass(frozen=True, slots=True)
class RouteRule:
    """One path and method.

    Attributes:
        scope: the scope that the caller's key needs; None answers strangers.
        max_body_bytes: the largest body.
    """

    method: str
    path: str
    scope: Scope | None = None
    max_body_bytes: int = MAX_BODY_BYTES

    @property
    def is_counted(self) -> bool:
        """Return whether it counts against request limits."""
        return self.scope is Scope.INFERENCE


CHAT = RouteRule("POST", "/v1/chat/completions", Scope.INFERENCE)
COMPLETIONS = RouteRule("POST", "/v1/completions", Scope.INFERENCE)
RESPONSES = RouteRule("POST", "/v1/responses", Scope.INFERENCE)
GENERATE = RouteRule("POST", "/generate", Scope.INFERENCE)
# A websocket; each of its messages is a request.
GENERATE_SOCKET = RouteRule("WEBSOCKET", "/generate", Scope.INFERENCE)
MESSAGES = RouteRule("POST", "/v1/messages", Scope.INFERENCE)
COUNT_TOKENS = RouteRule("POST", "/v1/messages/count_tokens", Scope.INFERENCE)
EMBEDDINGS = RouteRule("POST", "/v1/embeddings", Scope.INFERENCE)
RERANK = RouteRule("POST", "/v1/rerank", Scope.INFERENCE)
TOKENIZE = RouteRule("POST", "/v1/tokenize", Scope.INFERENCE)
DETOKENIZE = RouteRule("POST", "/v1/detokenize", Scope.INFERENCE)
LIST_MODELS = RouteRule("GET", "/v1/models", Scope.MODELS)
GET_MODEL = RouteRule("GET", "/v1/models/{model:path}", Scope.MODELS)
OLLAMA_CHAT = RouteRule("POST", "/api/chat", Scope.INFERENCE)
OLLAMA_GENERATE = RouteRule("POST", "/api/generate", Scope.INFERENCE)
OLLAMA_EMBED = RouteRule("POST", "/api/embed", Scope.INFERENCE)
OLLAMA_EMBEDDINGS = RouteRule("POST", "/api/embeddings", Scope.INFERENCE)
OLLAMA_SHOW = RouteRule("POST", "/api/show", Scope.MODELS)
OLLAMA_TAGS = RouteRule("GET", "/api/tags", Scope.MODELS)
OLLAMA_PS = RouteRule("GET", "/api/ps", Scope.MODELS)
OLLAMA_VERSION = RouteRule("GET", "/api/version")
OPENAPI = RouteRule("GET", "/openapi.json")
HOME = RouteRule("GET", "/")
TRANSCRIPTIONS = RouteRule("POST", "/v1/audio/transcriptions", Scope.INFERENCE)
# Of llama.cpp's server, where its scripts and plugins expect them.
LLAMA_COMPLETION = RouteRule("POST", "/completion", Scope.INFERENCE)
LLAMA_CHAT_TOKENS = RouteRule("POST", "/v1/chat/completions/input_tokens", Scope.INFERENCE)
LLAMA_INFILL = RouteRule("POST", "/infill", Scope.INFERENCE)
LLAMA_TOKENIZE = RouteRule("POST", "/tokenize", Scope.INFERENCE)
LLAMA_DETOKENIZE = RouteRule("POST", "/detokenize", Scope.INFERENCE)
LLAMA_TEMPLATE = RouteRule("POST", "/apply-template", Scope.INFERENCE)
LLAMA_PROPS = RouteRule("GET", "/props", Scope.MODELS)
# vLLM's, which lm-eval asks for.
TOKENIZER_INFO = RouteRule("GET", "/tokenizer_info", Scope.MODELS)
LLAMA_SLOTS = RouteRule("GET", "/slots", Scope.MODELS)
METRICS = RouteRule("GET", "/metrics", Scope.STATUS)
HEALTH = RouteRule("GET", "/health")
V1_HEALTH = RouteRule("GET", "/v1/health")
HEALTHZ = RouteRule("GET", "/healthz")
LIVEZ = RouteRule("GET", "/livez")
READYZ = RouteRule("GET", "/readyz")


def _of_administrators(method: MethodDescriptor) -> RouteRule:
    rule = ADMIN_RULES[f"/{method.containing_service.full_name}/{method.name}"]
    max_bytes = min(MAX_BODY_BYTES, _JSON_FACTOR * rule.max_body_bytes)
    return RouteRule("POST", f"/v1/admin/{method.name}", Scope(rule.scope), max_bytes)


def _without_v1(rule: RouteRule) -> RouteRule:
    return replace(rule, path=rule.path.removeprefix("/v1"))


# The same under the paths that clients call with a base address without `/v1`.
ALIASES = {
    _without_v1(rule): rule
    for rule in (CHAT, LLAMA_CHAT_TOKENS, RESPONSES, EMBEDDINGS, RERANK, LIST_MODELS, TRANSCRIPTIONS)
} | {replace(RERANK, path=path): RERANK for path in ("/v1/reranking", "/reranking")}
ALIASES[replace(LLAMA_COMPLETION, path="/completions")] = LLAMA_COMPLETION

# They are on the page of HTTP, and not in the OpenAPI document, which says of each thing one way to call it.
UNDESCRIBED = (
    HOME,
    TRANSCRIPTIONS,
    LLAMA_COMPLETION,
    LLAMA_CHAT_TOKENS,
    LLAMA_INFILL,
    LLAMA_TOKENIZE,
    LLAMA_DETOKENIZE,
    LLAMA_TEMPLATE,
    LLAMA_PROPS,
    TOKENIZER_INFO,
    LLAMA_SLOTS,
    METRICS,
    HEALTH,
    V1_HEALTH,
    *ALIASES,
)

# By the name of the RPC.
ADMIN = {method.name: _of_administrators(method) for method in ADMIN_METHODS}

ROUTES = (
    CHAT,
    COMPLETIONS,
    RESPONSES,
    GENERATE,
    GENERATE_SOCKET,
    MESSAGES,
    COUNT_TOKENS,
    EMBEDDINGS,
    RERANK,
    TOKENIZE,
    DETOKENIZE,
    LIST_MODELS,
    GET_MODEL,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    OLLAMA_EMBED,
    OLLAMA_EMBEDDINGS,
    OLLAMA_SHOW,
    OLLAMA_TAGS,
    OLLAMA_PS,
    OLLAMA_VERSION,
    OPENAPI,
    HEALTHZ,
    LIVEZ,
    READYZ,
    *UNDESCRIBED,
    *ADMIN.values(),
)
