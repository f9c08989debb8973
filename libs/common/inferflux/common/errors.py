"""Every error that crosses a process boundary, each with its wire code.

    InferFluxError        code  HTTP
    ├── InvalidArgument      3   400  the request itself is wrong; names the field
    ├── Unauthenticated     16   401  no key, or not one of ours
    ├── PermissionDenied     7   403  a key, but not for this
    ├── NotFound             5   404  no such model, request, object
    ├── AlreadyExists        6   409  the request id is taken
    ├── ResourceExhausted    8   429  a limit or a full queue; try again after retry_delay_s
    ├── Unavailable         14   503  something needed is away; try again after retry_delay_s
    ├── DeadlineExceeded     4   504  too late
    ├── Cancelled            1   499  the caller cancelled
    └── Internal            13   500  a defect of ours

Codes are those of google.rpc.Code, which are those of gRPC. `to_status` and `from_rpc` are the two ways
over gRPC, `to_failed` and `from_failed` the two ways over a token stream, `to_http` is the way over HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    import grpc.aio
    from google.rpc import status_pb2

    from inferflux.v1 import tokens_pb2

DOMAIN = "inferflux"


class InferFluxError(Exception):
    """An error with a code for the wire, a stable reason for machines and a sentence for people."""

    code: ClassVar[int] = 2
    default_reason: ClassVar[str] = "UNKNOWN"
    http_status: ClassVar[int] = 500
    # What OpenAI's API calls such an error.
    http_type: ClassVar[str] = "server_error"

    def __init__(self, message: str, *, reason: str = "", retry_delay_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.retry_delay_s = retry_delay_s


class InvalidArgument(InferFluxError):
    code = 3
    default_reason = "INVALID_ARGUMENT"
    http_status = 400
    http_type = "invalid_request_error"

    def __init__(self, message: str, *, field: str = "", reason: str = "") -> None:
        super().__init__(message, reason=reason)
        self.field = field


class Unauthenticated(InferFluxError):
    code = 16
    default_reason = "UNAUTHENTICATED"
    http_status = 401
    http_type = "authentication_error"


class PermissionDenied(InferFluxError):
    code = 7
    default_reason = "PERMISSION_DENIED"
    http_status = 403
    http_type = "permission_error"


class NotFound(InferFluxError):
    code = 5
    default_reason = "NOT_FOUND"
    http_status = 404
    http_type = "invalid_request_error"


class AlreadyExists(InferFluxError):
    code = 6
    default_reason = "ALREADY_EXISTS"
    http_status = 409
    http_type = "invalid_request_error"


class ResourceExhausted(InferFluxError):
    code = 8
    default_reason = "RESOURCE_EXHAUSTED"
    http_status = 429
    http_type = "rate_limit_error"

    def __init__(self, message: str, *, reason: str = "", retry_delay_s: float | None = 1.0) -> None:
        super().__init__(message, reason=reason, retry_delay_s=retry_delay_s)


class Unavailable(InferFluxError):
    code = 14
    default_reason = "UNAVAILABLE"
    http_status = 503

    def __init__(self, message: str, *, reason: str = "", retry_delay_s: float | None = 1.0) -> None:
        super().__init__(message, reason=reason, retry_delay_s=retry_delay_s)


class DeadlineExceeded(InferFluxError):
    code = 4
    default_reason = "DEADLINE_EXCEEDED"
    http_status = 504


class Cancelled(InferFluxError):
    code = 1
    default_reason = "CANCELLED"
    http_status = 499
    http_type = "invalid_request_error"


class Internal(InferFluxError):
    code = 13
    default_reason = "INTERNAL"


_BY_CODE: dict[int, type[InferFluxError]] = {
    kind.code: kind
    for kind in (
        Unauthenticated,
        PermissionDenied,
        NotFound,
        AlreadyExists,
        ResourceExhausted,
        Unavailable,
        DeadlineExceeded,
        Cancelled,
        Internal,
    )
}


def from_code(
    code: int, message: str, *, reason: str = "", field: str = "", retry_delay_s: float | None = None
) -> InferFluxError:
    """The error of a wire code; a code that is none of ours (UNKNOWN, DATA_LOSS, ...) becomes Internal."""
    if code == InvalidArgument.code:
        return InvalidArgument(message, field=field, reason=reason)
    return _BY_CODE.get(code, Internal)(message, reason=reason, retry_delay_s=retry_delay_s)


def to_status(error: InferFluxError) -> status_pb2.Status:
    """The google.rpc.Status with ErrorInfo, and BadRequest and RetryInfo where they apply."""
    from google.protobuf import duration_pb2
    from google.rpc import error_details_pb2, status_pb2

    status = status_pb2.Status(code=error.code, message=error.message)
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN))
    if isinstance(error, InvalidArgument) and error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.message)
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_delay_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(round(error.retry_delay_s * 1e9))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def from_status(status: status_pb2.Status) -> InferFluxError:
    """The error that `to_status` was given; details we do not know are ignored."""
    from google.rpc import error_details_pb2

    reason, field, retry_delay_s = "", "", None
    info, bad, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    for detail in status.details:
        if detail.Unpack(info):
            reason = info.reason
        elif detail.Unpack(bad) and bad.field_violations:
            field = bad.field_violations[0].field
        elif detail.Unpack(retry):
            retry_delay_s = retry.retry_delay.ToNanoseconds() / 1e9
    return from_code(status.code, status.message, reason=reason, field=field, retry_delay_s=retry_delay_s)


def from_rpc(error: grpc.aio.AioRpcError) -> InferFluxError:
    """The error a gRPC call ended with, its details included when the server sent any."""
    from google.rpc import status_pb2

    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            return from_status(status_pb2.Status.FromString(value))
    code: int = error.code().value[0]
    return from_code(code, error.details() or error.code().name)


def to_failed(error: InferFluxError) -> tokens_pb2.Failed:
    """The terminal chunk's event that says the same."""
    from inferflux.v1 import tokens_pb2

    return tokens_pb2.Failed(
        code=error.code,
        reason=error.reason,
        message=error.message,
        retry_delay_ms=0 if error.retry_delay_s is None else max(1, round(error.retry_delay_s * 1000)),
    )


def from_failed(failed: tokens_pb2.Failed) -> InferFluxError:
    """The error a terminal chunk carries."""
    retry_delay_s = failed.retry_delay_ms / 1000 if failed.retry_delay_ms else None
    return from_code(failed.code, failed.message, reason=failed.reason, retry_delay_s=retry_delay_s)


class HttpError(NamedTuple):
    """An error as HTTP says it; the body is to be sent as JSON."""

    status: int
    headers: Mapping[str, str]
    body: Mapping[str, Any]


# Reasons for which OpenAI's API has a code that clients look at.
_OPENAI_CODES = {
    "NO_CREDENTIAL": "invalid_api_key",
    "UNKNOWN_API_KEY": "invalid_api_key",
    "UNKNOWN_MODEL": "model_not_found",
    "PROMPT_TOO_LONG": "context_length_exceeded",
    "RESOURCE_EXHAUSTED": "rate_limit_exceeded",
}


def to_http(error: InferFluxError) -> HttpError:
    """The status, the headers and the body in the shape of OpenAI's API."""
    headers: dict[str, str] = {}
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
    return HttpError(error.http_status, headers, {"error": body})
