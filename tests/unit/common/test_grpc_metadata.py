"""Reading request ids and API keys out of gRPC metadata."""

from __future__ import annotations

import pytest

from inferflux.common.calls import grpc_metadata as metadata
from inferflux.common.calls.calls import call_context
from inferflux.common.contract.errors import InvalidArgument, Unauthenticated


@pytest.mark.parametrize(
    "pairs",
    [
        [("authorization", "Bearer ifx_key")],
        [("authorization", "bearer  ifx_key ")],
        [("x-api-key", "ifx_key")],
        [("authorization", "Basic abc"), ("x-api-key", "ifx_key")],
        [("authorization", "Bearer "), ("x-api-key", "ifx_key")],
        [("authorization", "Bearer ifx_key"), ("x-api-key", "ifx_key"), ("authorization", "bearer ifx_key")],
    ],
)
def test_a_key_is_read_from_either_header(pairs: list[tuple[str, str | bytes]]) -> None:
    assert call_context(pairs, remaining_s=None).require_credential() == "ifx_key"


@pytest.mark.parametrize("pairs", [None, [], [("authorization", "Bearer")], [("x-api-key", " ")]])
def test_no_key_is_unauthenticated(pairs: list[tuple[str, str | bytes]] | None) -> None:
    with pytest.raises(Unauthenticated) as caught:
        call_context(pairs, remaining_s=None).require_credential()
    assert caught.value.reason == "NO_CREDENTIAL"


@pytest.mark.parametrize(
    "pairs",
    [
        [("authorization", "Bearer ifx_one"), ("authorization", "Bearer ifx_two")],
        [("authorization", "Bearer ifx_one"), ("x-api-key", "ifx_two")],
        [("x-api-key", "ifx_one"), ("x-api-key", "ifx_two"), ("x-api-key", "ifx_one")],
    ],
)
def test_several_different_keys_are_none(pairs: list[tuple[str, str | bytes]]) -> None:
    with pytest.raises(Unauthenticated) as caught:
        call_context(pairs, remaining_s=None).require_credential()
    assert caught.value.reason == "SEVERAL_CREDENTIALS"
    assert "ifx_" not in caught.value.message


def test_a_request_id_is_taken_or_made() -> None:
    assert metadata.request_id([("x-request-id", "A-b_9")]) == "A-b_9"
    made = metadata.request_id(None)
    assert metadata.request_id([("x-request-id", made)]) == made


@pytest.mark.parametrize("given", ["a.b", "a b", "x" * 65, "ü", "a\n", ">"])
def test_a_request_id_that_could_not_stand_in_a_subject_is_refused(given: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        metadata.request_id([("x-request-id", given)])
    assert caught.value.field == "x-request-id"


def test_outgoing_leaves_out_what_is_empty() -> None:
    assert metadata.outgoing() == ()
    assert metadata.outgoing(api_key="k", traceparent="00-x") == (
        ("authorization", "Bearer k"),
        ("traceparent", "00-x"),
    )


@pytest.mark.parametrize("given", ["", "é", "a\x01", "x" * 20_000, "00-" + "0" * 32 + "-" + "1" * 16 + "-01"])
def test_a_header_that_is_no_trace_context_is_left_out(given: str) -> None:
    assert call_context([("traceparent", given)], remaining_s=None).traceparent == ""


def test_a_trace_context_is_taken() -> None:
    given = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    assert call_context([("traceparent", given)], remaining_s=None).traceparent == given


@pytest.mark.parametrize(("text", "priority"), [("", 0), ("5", 5), ("+5", 5), ("-100", -100), ("100", 100)])
def test_a_priority_is_announced_by_a_number(text: str, priority: int) -> None:
    assert call_context([(metadata.PRIORITY, text)], remaining_s=None).announced_priority == priority


@pytest.mark.parametrize("text", ["101", "-101", "1e1", "urgent", "99999", "1 "])
def test_another_priority_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        call_context([(metadata.PRIORITY, text)], remaining_s=None)
    assert caught.value.field == "priority"
