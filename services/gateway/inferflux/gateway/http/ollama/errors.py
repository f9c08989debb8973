"""Errors in the shape of Ollama's API. Pure."""

from __future__ import annotations

from inferflux.common import errors
from inferflux.common.errors import HttpError, InferFluxError, InvalidArgument


def to_http(error: InferFluxError, _request_id: str) -> HttpError:
    """The status and the headers of any front, and a message, which names the field that is wrong."""
    status, headers, _ = errors.to_http(error)
    field = error.field if isinstance(error, InvalidArgument) else ""
    is_named = not field or field in error.message
    return HttpError(status, headers, {"error": error.message if is_named else f"{field}: {error.message}"})
