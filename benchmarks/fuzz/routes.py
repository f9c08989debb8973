"""Bodies for the HTTP routes of clients: mostly what could be answered, with fields that are odd."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from inferflux.gateway.http.anthropic import bodies as anthropic_bodies
from inferflux.gateway.http.front.bodies import Body
from inferflux.gateway.http.front.routes import ADMIN, ROUTES, RouteRule
from inferflux.gateway.http.ollama import bodies as ollama_bodies
from inferflux.gateway.http.openai import bodies, text_bodies

from .messages import FLOATS, INTEGERS, TEXTS

WEBSOCKET: Final = "WEBSOCKET"
_MAX_DEPTH = 4
_MAX_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    Attributes:
        method: "WEBSOCKET" sends `body` as a message of one.
    """

    method: str
    path: str
    body: bytes
    is_audited: bool


def client_routes() -> list[RouteRule]:
    """All but those of administrators, which are called as the RPCs that they are."""
    return [route for route in ROUTES if route not in ADMIN.values()]


def known_fields() -> list[str]:
    """List the fields of every body, and of what is in bodies."""
    models = (
        kind
        for api in (bodies, text_bodies, anthropic_bodies, ollama_bodies)
        for kind in vars(api).values()
        if isinstance(kind, type)
    )
    return sorted({name for kind in models if issubclass(kind, Body) for name in kind.model_fields})


class Bodies:
    """Draws calls of routes.

    Args:
        model: one that is served.
        texts: further texts that mean something to the server.
    """

    def __init__(self, source: random.Random, model: str, texts: Sequence[str] = ()) -> None:
        self._random = source
        self._model = model
        self._texts = (*TEXTS, *texts)
        self._fields = known_fields()

    def draw(self, route: RouteRule) -> Call:
        """A call of this route."""
        name = self._random.choice((self._model, "models/%2e%2e", "%00", "a/b", "%ff", "x" * 3000))
        path = route.path.replace("{model:path}", name)
        body = self._body() if route.method != "GET" else b""
        return Call(route.method, path, body, route.scope is not None)

    def _body(self) -> bytes:
        roll = self._random.random()
        given: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": self._random.choice(self._texts)}],
            "prompt": self._random.choice((*self._texts, [1, 2, 3])),
            "input": self._random.choice((*self._texts, [1, 2, 3])),
            "text": self._random.choice(self._texts),
            "tokens": [1, 2, 3],
            "query": "a",
            "documents": ["b", self._random.choice(self._texts)],
            "max_tokens": _MAX_TOKENS,
            "max_output_tokens": _MAX_TOKENS,
        }
        kept = {key: value for key, value in given.items() if self._random.random() < 0.9}
        for _ in range(self._random.choice((0, 1, 1, 2, 5))):
            kept[self._random.choice(self._fields)] = self._value(0)
        body = json.dumps(kept, ensure_ascii=roll < 0.3).encode("utf-8", "surrogatepass")
        if roll > 0.1:
            return body
        cut = self._random.randrange(len(body))
        return body[:cut] + self._random.choice((b"", b"\xff", b"\x00", b"{", b"]", b'"')) + body[cut + 1 :]

    def _value(self, depth: int) -> Any:
        kinds = ("text", "integer", "float", "bool", "null", "list", "object", "message", "schema")
        match self._random.choice(kinds[: None if depth < _MAX_DEPTH else 5]):
            case "text":
                return self._random.choice(self._texts)
            case "integer":
                return self._random.choice(INTEGERS)
            case "float":
                return self._random.choice(FLOATS)
            case "bool":
                return self._random.random() < 0.5
            case "list":
                return [self._value(depth + 1) for _ in range(self._random.choice((0, 1, 2, 3, 40)))]
            case "object":
                return {self._random.choice(self._fields): self._value(depth + 1) for _ in range(3)}
            case "message":
                role = self._random.choice(("user", "assistant", "system", "tool", ""))
                return {"role": role, "content": self._value(depth + 1)}
            case "schema":
                return {
                    "type": "object",
                    "properties": {"a": {"type": "string"}, "b": self._value(depth + 1)},
                }
        return None
