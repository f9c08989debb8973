"""Protobuf's JSON: what is a message, and what an error says of what is none."""

from __future__ import annotations

import json

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.paths.message_json import parse_message
from inferflux.v1 import guardrails_pb2, policy_pb2


def test_both_spellings_of_a_name_and_null_are_read() -> None:
    body = b'{"tenant": "acme", "max_priority": "5", "cacheScope": "x", "models": null}'
    assert parse_message(policy_pb2.CreateApiKeyRequest, body) == policy_pb2.CreateApiKeyRequest(
        tenant="acme", max_priority=5, cache_scope="x"
    )


@pytest.mark.parametrize("body", [b"", b"{}", b" {} "])
def test_nothing_is_an_empty_message(body: bytes) -> None:
    assert parse_message(policy_pb2.CreateApiKeyRequest, body) == policy_pb2.CreateApiKeyRequest()


def test_a_message_that_was_written_is_read_again() -> None:
    message = guardrails_pb2.SetGuardrailsRequest()
    message.guardrails.rules.blocked.add(text='a"\\\n\x00é😀', is_word=True)
    message.guardrails.version = 2**64 - 1
    message.guardrails.changed_at.FromMilliseconds(1)
    written = json_format.MessageToDict(message, preserving_proto_field_name=True)
    assert parse_message(type(message), json.dumps(written).encode()) == message


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        (policy_pb2.CreateApiKeyRequest, '{"tenants": 1}', "tenants"),
        (policy_pb2.CreateApiKeyRequest, '{"tenant": 1}', "tenant"),
        (policy_pb2.CreateApiKeyRequest, '{"tenant": "\\ud800"}', "tenant"),
        (policy_pb2.CreateApiKeyRequest, '{"max_priority": 1e400}', "max_priority"),
        (policy_pb2.CreateApiKeyRequest, '{"max_priority": 99999999999}', "max_priority"),
        (policy_pb2.CreateApiKeyRequest, '{"max_priority": 5.5}', "max_priority"),
        (policy_pb2.CreateApiKeyRequest, '{"scopes": "inference"}', "scopes"),
        (policy_pb2.CreateApiKeyRequest, '{"scopes": [null]}', "scopes[0]"),
        (policy_pb2.CreateApiKeyRequest, '{"expires_at": "soon"}', "expires_at"),
        (policy_pb2.UpdateApiKeyRequest, '{"api_key": []}', "api_key"),
        (policy_pb2.UpdateApiKeyRequest, '{"api_key": ""}', "api_key"),
        (policy_pb2.UpdateApiKeyRequest, '{"apiKey": 5}', "apiKey"),
        (policy_pb2.UpdateApiKeyRequest, '{"api_key": {"scopes": [1]}}', "api_key.scopes"),
        (policy_pb2.UpdateApiKeyRequest, '{"api_key": {"name": "x", "nam": 1}}', "api_key.nam"),
        (policy_pb2.UpdateApiKeyRequest, '{"update_mask": "max_priority"}', "update_mask"),
        (guardrails_pb2.SetGuardrailsRequest, '{"guardrails": {"rules": {"blocked": [{}, []]}}}',
         "guardrails.rules.blocked[1]"),
    ],
)  # fmt: skip
def test_an_error_names_the_field(kind: type[Message], body: str, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_message(kind, body.encode())
    assert refused.value.field == field
    assert field in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"5", b"null", b'"x"', b"\xff", b"[" * 60_000, b'{"api_key":' * 3000,
     b'{"tenant": "a", "tenant": "b"}', b'{"max_priority": ' + b"9" * 5000 + b"}"],
    ids=lambda body: repr(body[:20]),
)  # fmt: skip
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_message(policy_pb2.CreateApiKeyRequest, body)
    assert refused.value.reason == "INVALID_JSON"
    assert len(refused.value.message) < 400


def test_messages_in_messages_without_end_are_refused() -> None:
    body = b'{"api_key":' * 30 + b"{}" + b"}" * 30
    with pytest.raises(InvalidArgument):
        parse_message(policy_pb2.UpdateApiKeyRequest, body)
