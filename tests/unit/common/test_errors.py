"""Errors keep their code, reason, field and delay over both wires."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

from inferflux.common.contract import errors
from inferflux.v1 import tokens_pb2

KINDS = [
    errors.Unauthenticated,
    errors.PermissionDenied,
    errors.NotFound,
    errors.AlreadyExists,
    errors.ResourceExhausted,
    errors.Unavailable,
    errors.DeadlineExceeded,
    errors.Cancelled,
    errors.Internal,
]
SAMPLES: list[errors.InferFluxError] = [
    *(kind("a sentence") for kind in KINDS),
    *(kind("a sentence", reason="SPECIAL", retry_delay_s=0.25) for kind in KINDS),
    errors.InvalidArgument("must be positive", field="params.max_tokens"),
    errors.InvalidArgument("must be positive", field="x", reason="TOO_SMALL"),
]


def same(one: errors.InferFluxError, other: errors.InferFluxError) -> bool:
    return (type(one), vars(one)) == (type(other), vars(other))


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: f"{type(error).__name__} {error.reason}")
def test_a_status_gives_the_same_error_back(error: errors.InferFluxError) -> None:
    assert same(errors.from_status(errors.to_status(error).SerializeToString()), error)


def test_a_status_whose_details_are_damaged_keeps_its_code() -> None:
    trailing = grpc.aio.Metadata(("grpc-status-details-bin", b"\xff"))
    failed = grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, grpc.aio.Metadata(), trailing, details="gone")
    assert same(errors.from_rpc(failed), errors.NotFound("gone"))


def test_a_call_that_grpc_dropped_without_a_word_says_what_became_of_it() -> None:
    none = grpc.aio.Metadata()
    dropped = grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, none, none, details="CANCELLED")
    error = errors.from_rpc(dropped)
    assert (type(error), error.reason) == (errors.Cancelled, "CALL_DROPPED")
    assert "too many calls wait there already (8,192)" in error.message
    own = grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, none, none, details="Locally cancelled")
    assert same(errors.from_rpc(own), errors.Cancelled("Locally cancelled"))


def test_an_error_has_what_the_caller_is_told_beside_it() -> None:
    trailing = grpc.aio.Metadata(
        ("x-ratelimit-remaining-requests", "0"), ("x-inferflux-guardrail", "acme/ blocked[1]"), ("via", "a")
    )
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    failed = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details="used up")
    assert errors.from_rpc(failed).headers == {
        "x-ratelimit-remaining-requests": "0",
        "x-inferflux-guardrail": "acme/ blocked[1]",
    }


def test_details_that_are_not_known_are_ignored() -> None:
    status = status_pb2.Status(code=5, message="gone")
    status.details.add().Pack(error_details_pb2.Help())
    status.details.add().Pack(error_details_pb2.BadRequest())
    assert same(errors.from_status(status.SerializeToString()), errors.NotFound("gone"))


@pytest.mark.parametrize("kind", [*KINDS, errors.InvalidArgument])
def test_codes_are_those_of_grpc(kind: type[errors.InferFluxError]) -> None:
    name = "".join("_" + c if c.isupper() else c for c in kind.__name__).strip("_").upper()
    assert kind.code == grpc.StatusCode[name].value[0]
    assert kind.default_reason == name


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_chunk_gives_the_same_error_back(kind: type[errors.InferFluxError]) -> None:
    error = kind("a sentence", reason="SPECIAL", retry_delay_s=1.5)
    assert same(errors.from_failed(errors.to_failed(error)), error)
    without = kind("a sentence", retry_delay_s=None)
    assert same(errors.from_failed(errors.to_failed(without)), without)


def test_a_failed_chunk_names_the_field_that_is_wrong() -> None:
    error = errors.InvalidArgument("a sentence", field="params.stop[1]", reason="SPECIAL")
    assert same(errors.from_failed(errors.to_failed(error)), error)


def test_a_short_delay_does_not_become_none_on_the_wire() -> None:
    failed = errors.to_failed(errors.Unavailable("soon", retry_delay_s=0.0001))
    assert failed.retry_delay_ms == 1


def test_a_status_carries_what_clients_look_for() -> None:
    status = errors.to_status(errors.InvalidArgument("must be positive", field="max_tokens"))
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    assert (info.domain, info.reason) == ("inferflux", "INVALID_ARGUMENT")
    assert status.details[1].Unpack(bad)
    assert bad.field_violations[0].field == "max_tokens"
    busy = errors.to_status(errors.ResourceExhausted("full", retry_delay_s=2.5))
    retry = error_details_pb2.RetryInfo()
    assert busy.details[1].Unpack(retry)
    assert retry.retry_delay.ToNanoseconds() == 2_500_000_000


def test_an_unknown_code_is_internal() -> None:
    error = errors.from_failed(tokens_pb2.Failed(code=15, message="lost"))
    assert isinstance(error, errors.Internal)
    assert error.message == "lost"


HTTP: dict[type[errors.InferFluxError], tuple[int, str]] = {
    errors.InferFluxError: (500, "server_error"),
    errors.InvalidArgument: (400, "invalid_request_error"),
    errors.Unauthenticated: (401, "authentication_error"),
    errors.PermissionDenied: (403, "permission_error"),
    errors.NotFound: (404, "invalid_request_error"),
    errors.AlreadyExists: (409, "invalid_request_error"),
    errors.FailedPrecondition: (400, "invalid_request_error"),
    errors.Aborted: (409, "invalid_request_error"),
    errors.ResourceExhausted: (429, "rate_limit_error"),
    errors.Cancelled: (499, "invalid_request_error"),
    errors.Internal: (500, "server_error"),
    errors.Unavailable: (503, "server_error"),
    errors.DeadlineExceeded: (504, "server_error"),
}


def test_every_kind_of_error_has_an_http_status() -> None:
    # A front may have a kind of its own.
    kinds = {errors.InferFluxError, *errors.InferFluxError.__subclasses__()}
    assert {kind for kind in kinds if kind.__module__ == errors.InferFluxError.__module__} == HTTP.keys()
    found = {kind: errors.to_http(kind("a sentence")) for kind in HTTP}
    assert {kind: (http.status, http.body["error"]["type"]) for kind, http in found.items()} == HTTP
    assert all(http.body["error"]["message"] == "a sentence" for http in found.values())


@pytest.mark.parametrize(
    ("error", "headers", "param", "code"),
    [
        (errors.InvalidArgument("x", field="params.max_tokens"), {}, "params.max_tokens", "invalid_value"),
        (errors.InvalidArgument("x", reason="PROMPT_TOO_LONG"), {}, None, "context_length_exceeded"),
        (
            errors.Unauthenticated("x", reason="NO_CREDENTIAL"),
            {"www-authenticate": "Bearer"},
            None,
            "invalid_api_key",
        ),
        (errors.NotFound("x", reason="UNKNOWN_MODEL"), {}, None, "model_not_found"),
        (errors.ResourceExhausted("x"), {"retry-after": "1"}, None, "rate_limit_exceeded"),
        (
            errors.Unavailable("x", reason="NO_WORKER", retry_delay_s=2.1),
            {"retry-after": "3"},
            None,
            "no_worker",
        ),
        (errors.Unavailable("x", retry_delay_s=0.01), {"retry-after": "1"}, None, "unavailable"),
        (errors.Unavailable("x", retry_delay_s=None), {}, None, "unavailable"),
    ],
)
def test_http_says_field_reason_and_delay(
    error: errors.InferFluxError, headers: dict[str, str], param: str | None, code: str
) -> None:
    http = errors.to_http(error)
    assert http.headers == headers
    assert (http.body["error"]["param"], http.body["error"]["code"]) == (param, code)


@pytest.mark.parametrize(
    "key",
    [
        "sk-proj-0123456789abcdef",
        "ifx_0123456789abcdef",
        "hf_abcdefghijkl",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIi.x",
    ],
)
def test_an_error_does_not_repeat_a_key_that_was_put_into_the_wrong_field(key: str) -> None:
    error = errors.NotFound(f"there is no model {key!r}: GET /v1/models tells which there are")
    assert key not in str(error)
    assert error.message == "there is no model '[a key]': GET /v1/models tells which there are"
