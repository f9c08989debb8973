"""The one decision: who may go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.contract.callers.scopes import Scope, expanded
from inferflux.common.contract.errors import InferFluxError, PermissionDenied, Unauthenticated
from inferflux.policy.decide.admission import Holder, authorize, identify
from inferflux.policy.decide.keys import ApiKeyRecord, digest_of
from inferflux.policy.decide.roles import Role

SECRET = "ifx_" + "a" * 43
NOW = 1_000_000


def decide(
    credential: str, key: ApiKeyRecord | None, scope: Scope, *, roles: Sequence[Role] = (), now_unix_ms: int
) -> Holder:
    holder = identify(credential, key, roles=roles, now_unix_ms=now_unix_ms)
    authorize(holder, scope)
    return holder


def key_with(*scopes: Scope) -> ApiKeyRecord:
    return ApiKeyRecord("0f" * 32, "acme", "ci", scopes, 1)


def test_a_call_without_a_key_is_unauthenticated() -> None:
    with pytest.raises(Unauthenticated) as caught:
        decide("", None, Scope.INFERENCE, now_unix_ms=NOW)
    assert caught.value.reason == "NO_CREDENTIAL"


def test_an_unknown_key_is_unauthenticated() -> None:
    with pytest.raises(Unauthenticated) as caught:
        decide(SECRET, None, Scope.INFERENCE, now_unix_ms=NOW)
    assert caught.value.reason == "UNKNOWN_API_KEY"


def test_a_refusal_never_repeats_the_credential() -> None:
    with pytest.raises(Unauthenticated) as caught:
        decide(SECRET, None, Scope.INFERENCE, now_unix_ms=NOW)
    assert SECRET not in caught.value.message


@given(st.sets(st.sampled_from(Scope)), st.sampled_from(Scope))
def test_a_call_passes_exactly_when_the_key_has_its_scope_or_one_that_includes_it(
    scopes: set[Scope], asked: Scope
) -> None:
    key = key_with(*scopes)
    if asked in expanded(scopes):
        holder = decide(SECRET, key, asked, now_unix_ms=NOW)
        assert holder.key is key
        assert holder.access.scopes == expanded(scopes)
    else:
        with pytest.raises(PermissionDenied, match=f"lacks the scope '{asked}'") as caught:
            decide(SECRET, key, asked, now_unix_ms=NOW)
        assert caught.value.reason == "MISSING_SCOPE"


def test_admin_alone_does_not_infer() -> None:
    with pytest.raises(InferFluxError, match="inference"):
        decide(SECRET, key_with(Scope.ADMIN), Scope.INFERENCE, now_unix_ms=NOW)


def test_a_key_is_refused_from_the_millisecond_on_at_which_it_expires() -> None:
    key = replace(key_with(Scope.INFERENCE), expires_unix_ms=NOW)
    assert decide(SECRET, key, Scope.INFERENCE, now_unix_ms=NOW - 1).key is key
    with pytest.raises(Unauthenticated) as caught:
        decide(SECRET, key, Scope.INFERENCE, now_unix_ms=NOW)
    assert caught.value.reason == "API_KEY_EXPIRED"


@pytest.mark.parametrize(
    ("changes", "same_for_ms"),
    [
        ({}, 250),
        ({"expires_unix_ms": NOW + 100}, 100),
        ({"expires_unix_ms": NOW + 1000}, 250),
        ({"digest": "0f" * 32, "previous_digest": digest_of(SECRET)}, 0),
        ({"digest": "0f" * 32, "previous_until_unix_ms": NOW + 70}, 70),
        ({"digest": "0f" * 32, "previous_until_unix_ms": NOW + 70, "expires_unix_ms": NOW + 60}, 60),
    ],
    ids=["until it is read again", "expires", "expires later", "rotated", "replaced secret", "both"],
)
def test_a_holder_stays_the_same_until_keys_are_read_again_or_its_secret_ends(
    changes: dict[str, Any], same_for_ms: int
) -> None:
    key = replace(key_with(Scope.INFERENCE), **({"digest": digest_of(SECRET)} | changes))
    assert identify(SECRET, key, now_unix_ms=NOW, due_in_s=0.25).same_for_ms == same_for_ms
    assert identify(SECRET, key, now_unix_ms=NOW).same_for_ms == 0


def test_a_role_gives_its_scopes_and_one_that_is_gone_gives_none() -> None:
    key = replace(key_with(), roles=("reader", "gone"))
    reader = Role("reader", (Scope.MODELS,))
    assert decide(SECRET, key, Scope.MODELS, roles=[reader], now_unix_ms=NOW).key is key
    with pytest.raises(PermissionDenied):
        decide(SECRET, key, Scope.MODELS, roles=[], now_unix_ms=NOW)
