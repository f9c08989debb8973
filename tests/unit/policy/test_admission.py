"""The one decision: who may go on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.errors import InferFluxError, PermissionDenied, Unauthenticated
from inferflux.policy.admission import Ask, decide
from inferflux.policy.keys import ALL_SCOPES, ApiKeyRecord, Scope

SECRET = "ifx_" + "a" * 43


def key_with(*scopes: Scope) -> ApiKeyRecord:
    return ApiKeyRecord("0f" * 32, "acme", "ci", scopes, 1)


def test_a_call_without_a_key_is_unauthenticated() -> None:
    with pytest.raises(Unauthenticated) as caught:
        decide("", None, Ask(Scope.INFERENCE))
    assert caught.value.reason == "NO_CREDENTIAL"


def test_an_unknown_key_is_unauthenticated() -> None:
    with pytest.raises(Unauthenticated) as caught:
        decide(SECRET, None, Ask(Scope.INFERENCE))
    assert caught.value.reason == "UNKNOWN_API_KEY"


def test_a_refusal_never_repeats_the_credential() -> None:
    with pytest.raises(Unauthenticated) as caught:
        decide(SECRET, None, Ask(Scope.INFERENCE))
    assert SECRET not in caught.value.message


@given(st.sets(st.sampled_from(ALL_SCOPES)), st.sampled_from(ALL_SCOPES))
def test_a_call_passes_exactly_when_the_key_has_its_scope(scopes: set[Scope], asked: Scope) -> None:
    key = key_with(*scopes)
    if asked in scopes:
        assert decide(SECRET, key, Ask(asked)) is key
    else:
        with pytest.raises(PermissionDenied, match=f"lacks the scope '{asked}'") as caught:
            decide(SECRET, key, Ask(asked))
        assert caught.value.reason == "MISSING_SCOPE"


def test_admin_alone_does_not_infer() -> None:
    with pytest.raises(InferFluxError, match="inference"):
        decide(SECRET, key_with(Scope.ADMIN), Ask(Scope.INFERENCE))
