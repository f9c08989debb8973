"""The shape in which errors of a call are told, of the API that its path or headers belong to. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inferflux.common.contract.errors import HttpError, InferFluxError, to_http

from .errors import with_field

# Anthropic's clients send it with every call.
_VERSION = "anthropic-version"

# By status. https://docs.anthropic.com/en/api/errors lists them.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    422: "api_error",
    429: "rate_limit_error",
    499: "api_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# Clients shorten their conversation when an error begins so.
_TOO_LONG = "prompt is too long"

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


def to_anthropic(error: InferFluxError, request_id: str) -> HttpError:
    """The status and the headers of any front, and a body in the shape of Anthropic's API.

    There is no place for the field that is wrong: the message names it.
    """
    status, headers, _ = to_http(error)
    body = {
        "type": "error",
        "error": {"type": _TYPES.get(status, "invalid_request_error"), "message": _in_message(error)},
        "request_id": request_id,
    }
    return HttpError(status, {**headers, "request-id": request_id}, body)


def _in_message(error: InferFluxError) -> str:
    if error.reason == "PROMPT_TOO_LONG":
        return f"{_TOO_LONG}: {error.message}"
    return with_field(error)


def to_ollama(error: InferFluxError, _request_id: str) -> HttpError:
    """The status and the headers of any front, and a message, which names the field that is wrong."""
    status, headers, _ = to_http(error)
    return HttpError(status, headers, {"error": with_field(error)})
