"""Every error that crosses a process boundary, in each of its forms.

The errors themselves are in `inferflux.api.errors`: clients get the same ones. `to_status` and `from_rpc` are
the two ways over gRPC, `to_failed` and `from_failed` the two ways over a token stream. `to_http` is the way
over HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from inferflux.api.errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    InferFluxError,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    from_code,
    from_failed,
    from_rpc,
    from_status,
)

if TYPE_CHECKING:
    from google.rpc import status_pb2

    from inferflux.v1 import tokens_pb2

__all__ = [
    "DOMAIN",
    "Aborted",
    "AlreadyExists",
    "Cancelled",
    "DeadlineExceeded",
    "FailedPrecondition",
    "HttpError",
    "InferFluxError",
    "Internal",
    "InvalidArgument",
    "NotFound",
    "PermissionDenied",
    "ResourceExhausted",
    "Unauthenticated",
    "Unavailable",
    "from_code",
    "from_failed",
    "from_rpc",
    "from_status",
    "to_failed",
    "to_http",
    "to_status",
]

DOMAIN = "inferflux"


def to_status(error: InferFluxError) -> status_pb2.Status:
    """The google.rpc.Status with ErrorInfo, and BadRequest and RetryInfo where they apply."""
    from google.protobuf import duration_pb2
    from google.rpc import error_details_pb2, status_pb2

    status = status_pb2.Status(code=error.code, message=error.message)
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.headers)
    status.details.add().Pack(info)
    if isinstance(error, InvalidArgument) and error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.message)
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_delay_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(round(error.retry_delay_s * 1e9))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def to_failed(error: InferFluxError) -> tokens_pb2.Failed:
    """The terminal chunk's event that says the same."""
    from inferflux.v1 import tokens_pb2

    return tokens_pb2.Failed(
        code=error.code,
        reason=error.reason,
        message=error.message,
        retry_delay_ms=0 if error.retry_delay_s is None else max(1, round(error.retry_delay_s * 1000)),
        field=error.field if isinstance(error, InvalidArgument) else "",
    )


class HttpError(NamedTuple):
    """An error as HTTP says it; the body is to be sent as JSON."""

    status: int
    headers: Mapping[str, str]
    body: Mapping[str, Any]


# Reasons for which OpenAI's API has a code that clients look at.
_OPENAI_CODES = {
    "NO_CREDENTIAL": "invalid_api_key",
    "SEVERAL_CREDENTIALS": "invalid_api_key",
    "UNKNOWN_API_KEY": "invalid_api_key",
    "INVALID_TOKEN": "invalid_api_key",
    "UNKNOWN_MODEL": "model_not_found",
    "INVALID_ARGUMENT": "invalid_value",
    "PROMPT_TOO_LONG": "context_length_exceeded",
    "RESOURCE_EXHAUSTED": "rate_limit_exceeded",
    "RATE_LIMITED": "rate_limit_exceeded",
    "QUOTA_USED_UP": "insufficient_quota",
}


# RESOURCE_EXHAUSTED over gRPC, where HTTP has a status of its own.
_TOO_LARGE = frozenset({"BODY_TOO_LARGE", "TOO_MANY_FIELDS"})


def to_http(error: InferFluxError) -> HttpError:
    """The status, the headers and the body in the shape of OpenAI's API."""
    headers = dict(error.headers)
    if error.retry_delay_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_delay_s)))
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    field = error.field if isinstance(error, InvalidArgument) else ""
    body = {
        "message": error.message,
        "type": error.http_type,
        "param": field or None,
        "code": _OPENAI_CODES.get(error.reason, error.reason.lower()),
    }
    if error.reason in _TOO_LARGE:  # of a message that was passed on: to wait and send it again does not help
        return HttpError(413, headers, {"error": body | {"type": InvalidArgument.http_type}})
    return HttpError(error.http_status, headers, {"error": body})
