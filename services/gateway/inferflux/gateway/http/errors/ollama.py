"""Errors in the shape of Ollama's API. Pure."""

from __future__ import annotations

from inferflux.common.contract import errors
from inferflux.common.contract.errors import HttpError, InferFluxError

from .errors import with_field


def to_http(error: InferFluxError, _request_id: str) -> HttpError:
    """The status and the headers of any front, and a message, which names the field that is wrong."""
    status, headers, _ = errors.to_http(error)
    return HttpError(status, headers, {"error": with_field(error)})
