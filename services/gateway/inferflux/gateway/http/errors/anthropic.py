"""Errors in the shape of Anthropic's API. Pure."""

from __future__ import annotations

from inferflux.common.contract import errors
from inferflux.common.contract.errors import HttpError, InferFluxError

from .errors import with_field

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


def to_http(error: InferFluxError, request_id: str) -> HttpError:
    """The status and the headers of any front, and a body in the shape of Anthropic's API.

    There is no place for the field that is wrong: the message names it.
    """
    status, headers, _ = errors.to_http(error)
    body = {
        "type": "error",
        "error": {"type": _TYPES.get(status, "invalid_request_error"), "message": _message(error)},
        "request_id": request_id,
    }
    return HttpError(status, {**headers, "request-id": request_id}, body)


def _message(error: InferFluxError) -> str:
    if error.reason == "PROMPT_TOO_LONG":
        return f"{_TOO_LONG}: {error.message}"
    return with_field(error)
