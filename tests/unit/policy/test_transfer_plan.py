"""A document beside what is stored: what an import would change, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inferflux.common.contract.errors import Aborted, InvalidArgument
from inferflux.policy.decide import keys
from inferflux.policy.decide.guardrails.store import Name
from inferflux.policy.decide.keys import ApiKeyRecord
from inferflux.policy.decide.limits.rules import RateLimit
from inferflux.policy.decide.roles import Role
from inferflux.policy.operator.transfer.document import (
    GuardrailSet,
    PolicyState,
    parse_document,
    state_of,
    to_document,
)
from inferflux.policy.operator.transfer.plan import Change, n_items, plan
from inferflux.v1 import guardrails_pb2, policy_pb2

NOW_MS = 1_800_000_000_000
DIGEST = keys.digest_of("ifx_" + "a" * 43)


def a_key(**fields: Any) -> ApiKeyRecord:
    usual: dict[str, Any] = {
        "digest": DIGEST,
        "tenant": "acme",
        "name": "search",
        "scopes": ("inference",),
        "created_unix_ms": NOW_MS - 5,
        "roles": ("support",),
        "version": 3,
    }
    return ApiKeyRecord(**usual | fields)


KEY = a_key()
RULES = guardrails_pb2.GuardrailRules(blocked=[guardrails_pb2.BlockedText(text="bad")], max_tokens=9)
STORED = state_of(
    [Role("support", ("inference",), ("small*",), "the help desk", 4)],
    [RateLimit("tenant:acme", {"requests_per_day": 5}, 2)],
    [GuardrailSet(Name("acme", ""), RULES, 1700)],
    [KEY],
)


def exported(*, with_hashes: bool = False) -> policy_pb2.PolicyDocument:
    return to_document(STORED, with_hashes=with_hashes, now_ms=NOW_MS)


def planned(
    document: policy_pb2.PolicyDocument, stored: PolicyState = STORED, *, ignores_versions: bool = False
) -> list[Change]:
    return plan(parse_document(document, now_ms=NOW_MS), stored, ignores_versions=ignores_versions)


def told(changes: list[Change]) -> list[tuple[str, str, str, list[str]]]:
    messages = [change.message() for change in changes]
    return [(m.kind, m.name, m.action, list(m.fields)) for m in messages]


@pytest.mark.parametrize("with_hashes", [False, True])
def test_what_was_exported_changes_nothing(with_hashes: bool) -> None:
    document = exported(with_hashes=with_hashes)
    assert planned(document) == []
    assert n_items(parse_document(document, now_ms=NOW_MS)) == 4


def test_secrets_travel_only_where_they_are_asked_for() -> None:
    assert DIGEST not in str(exported())
    assert exported(with_hashes=True).api_keys[0].secret_sha256 == DIGEST


@pytest.mark.parametrize(
    "key",
    [
        KEY,
        a_key(
            max_priority=-3, cache_scope="x", skips_answer_cache=True, roles=(), expires_unix_ms=NOW_MS + 1
        ),
        a_key(models=("a*", "b"), worker_pools=("gold",), expires_unix_ms=NOW_MS - 1, max_priority=0),
        a_key(own_key_id="key_0123456789abcdef", is_deterministic=True),
    ],
)
def test_an_empty_store_gets_keys_as_they_were(key: ApiKeyRecord) -> None:
    stored = replace(STORED, keys={key.key_id: key})
    document = to_document(stored, with_hashes=True, now_ms=NOW_MS)
    changes = planned(document, PolicyState())
    assert [change.message().action for change in changes] == ["create"] * 4
    assert [change.kind for change in changes] == ["role", "rate_limit", "guardrails", "api_key"]
    assert changes[-1].new == replace(key, version=1)
    assert changes[0].new == STORED.roles["support"]


def test_changed_fields_are_told_by_the_documents_names() -> None:
    document = exported()
    document.roles[0].description = "others"
    document.rate_limits[0].tokens_per_day = 7
    document.guardrails[0].rules.patterns.append("x+")
    document.api_keys[0].skip_answer_cache = True
    document.api_keys[0].deterministic = True
    document.api_keys[0].expires_at.FromMilliseconds(NOW_MS + 5)
    changes = planned(document)
    assert told(changes) == [
        ("role", "support", "update", ["description"]),
        ("rate_limit", "tenant:acme", "update", ["tokens_per_day"]),
        ("guardrails", "acme/", "update", ["rules"]),
        ("api_key", KEY.key_id, "update", ["skip_answer_cache", "deterministic", "expires_at"]),
    ]
    expected = replace(
        KEY, version=4, skips_answer_cache=True, is_deterministic=True, expires_unix_ms=NOW_MS + 5
    )
    assert changes[-1].new == expected


def test_a_role_that_is_gone_is_left_out_of_its_keys() -> None:
    stored = state_of([Role("support", ("inference",))], [], [], [a_key(roles=("gone", "support"))])
    document = to_document(stored, with_hashes=True, now_ms=NOW_MS)
    assert document.api_keys[0].roles == ["support"]
    assert planned(document, stored) == []
    assert len(planned(document, PolicyState())) == 2
    without = state_of([], [], [], [a_key(roles=("gone",), scopes=())])
    document = to_document(without, with_hashes=True, now_ms=NOW_MS)
    assert planned(document, without) == []
    assert len(planned(document, PolicyState())) == 1


def test_what_the_document_does_not_have_stays() -> None:
    assert planned(policy_pb2.PolicyDocument(format=1)) == []


def test_a_stored_key_keeps_its_secret() -> None:
    document = exported(with_hashes=True)
    document.api_keys[0].secret_sha256 = keys.digest_of("other")
    document.api_keys[0].name = "new"
    (change,) = planned(document)
    assert change.new == replace(KEY, version=4, name="new")


def test_an_item_that_was_changed_since_is_refused_unless_versions_are_ignored() -> None:
    document = exported()
    document.roles[0].description = "others"
    document.roles[0].version = 3
    with pytest.raises(Aborted) as refused:
        planned(document)
    assert refused.value.reason == "VERSION_MISMATCH"
    assert "support" in refused.value.message
    assert told(planned(document, ignores_versions=True)) == [("role", "support", "update", ["description"])]
    document.roles[0].version = 0
    assert len(planned(document)) == 1


def test_an_item_of_another_version_that_is_the_same_is_no_conflict() -> None:
    document = exported()
    document.roles[0].version = 3
    assert planned(document) == []


def spoilt(field: str, **fields: Any) -> policy_pb2.PolicyDocument:
    document = exported(with_hashes=True)
    item = getattr(document, field)[0]
    for name, value in fields.items():
        if isinstance(value, list):
            del getattr(item, name)[:]
            getattr(item, name).extend(value)
        else:
            setattr(item, name, value)
    return document


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (policy_pb2.PolicyDocument(), "document.format"),
        (policy_pb2.PolicyDocument(format=2), "document.format"),
        (spoilt("roles", name="A"), "document.roles[0].name"),
        (spoilt("roles", name="admin"), "document.roles[0].name"),
        (spoilt("roles", scopes=["root"]), "document.roles[0].scopes[0]"),
        (spoilt("roles", scopes=[]), "document.roles[0].scopes"),
        (spoilt("rate_limits", subject="x"), "document.rate_limits[0].subject"),
        (spoilt("rate_limits", tokens_per_day=10**15), "document.rate_limits[0].tokens_per_day"),
        (spoilt("guardrails", tenant="A"), "document.guardrails[0].tenant"),
        (spoilt("api_keys", key_id="x"), "document.api_keys[0].key_id"),
        (spoilt("api_keys", tenant="A"), "document.api_keys[0].tenant"),
        (spoilt("api_keys", tenant="other"), "document.api_keys[0].tenant"),
        (spoilt("api_keys", roles=["no-such"]), "document.api_keys[0].roles[0]"),
        (spoilt("api_keys", roles=[], scopes=[]), "document.api_keys[0].scopes"),
        (spoilt("api_keys", max_priority=101), "document.api_keys[0].max_priority"),
        (spoilt("api_keys", secret_sha256="A" * 64), "document.api_keys[0].secret_sha256"),
        (spoilt("api_keys", key_id="key_0123456789abcdef"), "document.api_keys[0].secret_sha256"),
    ],
)
def test_what_cannot_be_is_refused_by_name(document: policy_pb2.PolicyDocument, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        planned(document)
    assert refused.value.field == field


def test_a_pattern_that_does_not_compile_is_refused_by_name() -> None:
    document = exported()
    document.guardrails[0].rules.patterns.append("(")
    with pytest.raises(InvalidArgument) as refused:
        planned(document)
    assert refused.value.field.startswith("document.guardrails[0].rules.patterns")


def test_a_key_that_is_not_there_needs_its_hash() -> None:
    with pytest.raises(InvalidArgument) as refused:
        planned(exported(), replace(STORED, keys={}))
    assert refused.value.field == "document.api_keys[0].secret_sha256"


@pytest.mark.parametrize("field", ["roles", "rate_limits", "guardrails", "api_keys"])
def test_two_items_of_one_name_are_refused(field: str) -> None:
    document = exported()
    getattr(document, field).append(getattr(document, field)[0])
    with pytest.raises(InvalidArgument) as refused:
        planned(document)
    assert refused.value.field == f"document.{field}[1]"


def test_two_keys_of_one_secret_are_refused() -> None:
    document = exported(with_hashes=True)
    document.api_keys.append(document.api_keys[0])
    document.api_keys[1].key_id = "key_0123456789abcdef"
    with pytest.raises(InvalidArgument) as refused:
        planned(document, PolicyState(roles=STORED.roles))
    assert refused.value.field == "document.api_keys[1].secret_sha256"
