"""Every error that InferFlux gives, each with its wire code.

    InferFluxError        code  HTTP
    ├── InvalidArgument      3   400  the request itself is wrong; names the field
    ├── Unauthenticated     16   401  no key, or not one of ours
    ├── PermissionDenied     7   403  a key, but not for this
    ├── NotFound             5   404  no such model, request, object
    ├── AlreadyExists        6   409  the request id is taken
    ├── FailedPrecondition   9   400  not as things are now
    ├── Aborted             10   409  it was changed meanwhile; read it again
    ├── ResourceExhausted    8   429  a limit or a full queue; try again after retry_delay_s
    ├── Unavailable         14   503  something needed is away; try again after retry_delay_s
    ├── DeadlineExceeded     4   504  too late
    ├── Cancelled            1   499  the caller cancelled
    └── Internal            13   500  a defect of ours

Codes are those of google.rpc.Code, which are those of gRPC. `from_rpc` reads an error out of a gRPC call that
failed, `from_failed` out of a token stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from .channel_options import MAX_WAITING_CALLS

if TYPE_CHECKING:
    from inferflux.v1 import tokens_pb2

_DETAILS = "grpc-status-details-bin"
# How the names begin of what the caller is told beside the error.
_TOLD = ("x-ratelimit-", "x-inferflux-")


# How keys of services begin: ours, OpenAI's, Anthropic's, Hugging Face's, Groq's, xAI's, Google's, GitHub's,
# and tokens of OpenID Connect.
_KEY = re.compile(r"\b(?:(?:sk|ifx|hf|gsk|xai|ghp|gho|pat)[-_]|AIza|eyJ)[\w.-]{8,}")


def without_keys(text: str) -> str:
    """A text with what looks like a key of a service left out: it was put into the wrong field."""
    return _KEY.sub("[a key]", text)


class FailedCall(Protocol):
    """Error that gRPC raises for a failed call: `grpc.aio.AioRpcError`, or an error of a call that blocks."""

    def code(self) -> Any: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> Any: ...


class InferFluxError(Exception):
    """An error with a code for the wire, a stable reason for machines and a sentence for people."""

    code: ClassVar[int] = 2
    default_reason: ClassVar[str] = "UNKNOWN"
    http_status: ClassVar[int] = 500
    # What OpenAI's API calls such an error.
    http_type: ClassVar[str] = "server_error"

    def __init__(self, message: str, *, reason: str = "", retry_delay_s: float | None = None) -> None:
        message = without_keys(message)
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.retry_delay_s = retry_delay_s
        # What else the caller is told, as trailing metadata or HTTP headers: names are in lower case.
        self.headers: Mapping[str, str] = {}
        # What operators are told beside the message, in logs: it has addresses, paths and names of users.
        self.detail = ""

    @property
    def in_full(self) -> str:
        """Message for logs, with the detail that callers do not get."""
        return f"{self.message}: {self.detail}" if self.detail else self.message


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


class FailedPrecondition(InferFluxError):
    code = 9
    default_reason = "FAILED_PRECONDITION"
    http_status = 400
    http_type = "invalid_request_error"


class Aborted(InferFluxError):
    code = 10
    default_reason = "ABORTED"
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

    def __init__(
        self, message: str, *, reason: str = "", retry_delay_s: float | None = 1.0, detail: str = ""
    ) -> None:
        super().__init__(message, reason=reason, retry_delay_s=retry_delay_s)
        self.detail = detail


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
        FailedPrecondition,
        Aborted,
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


def from_status(data: bytes) -> InferFluxError:
    """The error of an encoded google.rpc.Status; details that are not known are ignored."""
    from inferflux.v1 import status_pb2

    status = status_pb2.ErrorStatus.FromString(data)
    reason, field, retry_delay_s = "", "", None
    headers: Mapping[str, str] = {}
    for detail in status.details:
        kind = detail.TypeName()
        if kind == "google.rpc.ErrorInfo":
            info = status_pb2.ErrorInfo.FromString(detail.value)
            reason, headers = info.reason, dict(info.metadata)
        elif kind == "google.rpc.BadRequest":
            violations = status_pb2.BadRequest.FromString(detail.value).field_violations
            field = violations[0].field if violations else ""
        elif kind == "google.rpc.RetryInfo":
            delay = status_pb2.RetryInfo.FromString(detail.value).retry_delay
            retry_delay_s = delay.ToNanoseconds() / 1e9
    error = from_code(status.code, status.message, reason=reason, field=field, retry_delay_s=retry_delay_s)
    error.headers = headers
    return error


def from_rpc(error: FailedCall) -> InferFluxError:
    """The error a gRPC call ended with, its details included when the server sent any, and its headers."""
    metadata = tuple(error.trailing_metadata() or ())
    own = _from_details(metadata) or _from_grpc(error.code().value[0], error.details() or error.code().name)
    own.headers = {key: value for key, value in metadata if key.startswith(_TOLD) and isinstance(value, str)}
    return own


def _from_grpc(code: int, said: str) -> InferFluxError:
    """The error of a call that ended without our details: gRPC itself ended it, or a proxy."""
    if code == Cancelled.code and said == "CANCELLED":
        message = (
            "the server dropped the call: it is stopping, or too many calls wait there already "
            f"({MAX_WAITING_CALLS:,}); try again later"
        )
        return Cancelled(message, reason="CALL_DROPPED")
    return from_code(code, said)


def _from_details(metadata: Iterable[tuple[str, str | bytes]]) -> InferFluxError | None:
    from google.protobuf.message import DecodeError

    for key, value in metadata:
        if key == _DETAILS and isinstance(value, bytes):
            try:
                return from_status(value)
            except DecodeError:  # of a proxy's making
                break
    return None


def from_failed(failed: tokens_pb2.Failed) -> InferFluxError:
    """The error a terminal chunk carries."""
    retry_delay_s = failed.retry_delay_ms / 1000 if failed.retry_delay_ms else None
    return from_code(
        failed.code, failed.message, reason=failed.reason, field=failed.field, retry_delay_s=retry_delay_s
    )
