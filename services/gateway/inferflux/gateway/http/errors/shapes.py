"""In which shape errors of a call are told: its path says it, or a header of Anthropic's clients. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inferflux.common.contract.errors import HttpError, InferFluxError, to_http

from .anthropic import to_http as to_anthropic
from .ollama import to_http as to_ollama

# Anthropic's clients send it with every call.
_VERSION = "anthropic-version"

# An error and the request's id to what is sent.
Shape = Callable[[InferFluxError, str], HttpError]


def shape_of(path: str, headers: Sequence[tuple[str, str]]) -> Shape:
    """How errors of a call are told.

    Args:
        headers: with lower-case names.
    """
    is_messages = path == "/v1/messages" or path.startswith("/v1/messages/")
    if path.startswith("/api/"):
        return to_ollama
    if is_messages or is_anthropic(headers):
        return to_anthropic
    return _openai


def is_anthropic(headers: Sequence[tuple[str, str]]) -> bool:
    """Return whether they are those of Anthropic's clients."""
    return any(name == _VERSION for name, _ in headers)


def _openai(error: InferFluxError, _request_id: str) -> HttpError:
    return to_http(error)
