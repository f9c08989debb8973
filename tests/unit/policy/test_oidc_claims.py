"""What the claims of a verified token say."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.contract.callers.credentials import subject_id
from inferflux.common.contract.callers.scopes import Scope, expanded
from inferflux.common.contract.errors import PermissionDenied
from inferflux.policy.decide.admission import authorize, identify_token
from inferflux.policy.decide.keys import parse_holder_id
from inferflux.policy.decide.oidc.claims import TokenHolder, holder_of
from inferflux.policy.decide.oidc.issuer import Issuer
from inferflux.policy.decide.oidc.tokens import TokenRefused
from inferflux.policy.decide.roles import BUILTIN

URL = "https://idp.example.com"
NOW = 1_900_000_000.0
GOOD: dict[str, Any] = {"iss": URL, "aud": "inferflux", "sub": "alice", "iat": NOW - 10, "exp": NOW + 300}


def issuer(**fields: Any) -> Issuer:
    given = {"issuer": URL, "audiences": ["inferflux"], "leeway_s": 30, "tenant": "acme"} | fields
    return Issuer.model_validate({name: value for name, value in given.items() if value is not None})


def holder(claims: dict[str, Any] | None = None, **fields: Any) -> TokenHolder:
    return holder_of(GOOD | (claims or {}), issuer(**fields), now_s=NOW)


def refused(claims: dict[str, Any], **fields: Any) -> str:
    with pytest.raises(TokenRefused) as caught:
        holder(claims, **fields)
    return caught.value.why


def test_a_good_token_has_a_holder() -> None:
    found = holder()
    assert found.identity == {"issuer": URL, "subject": "alice"}
    assert found.record.tenant == "acme"
    assert found.record.key_id == subject_id(URL, "alice")
    assert parse_holder_id(found.record.key_id)


def test_the_same_subject_of_two_issuers_is_two_and_stays_itself() -> None:
    assert subject_id("https://a", "x") == subject_id("https://a", "x")
    assert (
        len({subject_id("https://a", "bc"), subject_id("https://ab", "c"), subject_id("https://a", "x")}) == 3
    )


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"iss": "https://idp.example.com/"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "other"}, "audience"),
        ({"aud": ["other", "another"]}, "audience"),
        ({"aud": ""}, "audience"),
        ({"aud": {"inferflux": 1}}, "audience"),
        ({"aud": ["inferflux", 1]}, "audience"),
        ({"aud": None}, "audience"),
        ({"exp": NOW - 30}, "expired"),
        ({"exp": NOW - 1000}, "expired"),
        ({"exp": None}, "times"),
        ({"exp": "2100"}, "times"),
        ({"exp": True}, "times"),
        ({"exp": float("inf")}, "times"),
        ({"exp": float("nan")}, "times"),
        ({"exp": 10**400}, "times"),
        ({"exp": -1}, "times"),
        ({"exp": [NOW + 300]}, "times"),
        ({"iat": None}, "times"),
        ({"iat": "now"}, "times"),
        ({"iat": NOW + 31}, "not_yet"),
        ({"iat": NOW - 86_430}, "too_old"),
        ({"nbf": NOW + 31}, "not_yet"),
        ({"nbf": "soon"}, "times"),
        ({"nbf": None}, "times"),
        ({"sub": ""}, "subject"),
        ({"sub": None}, "subject"),
        ({"sub": 7}, "subject"),
        ({"sub": "a" * 256}, "subject"),
        ({"sub": "alice\nroot"}, "subject"),
        ({"sub": "alice\ud800"}, "subject"),
    ],
)
def test_a_token_that_is_not_for_us_or_not_of_now_is_refused(claims: dict[str, Any], why: str) -> None:
    assert refused(claims) == why


@pytest.mark.parametrize("name", ["exp", "iat", "sub", "aud", "iss"])
def test_a_token_needs_each_of_its_claims(name: str) -> None:
    claims = {key: value for key, value in GOOD.items() if key != name}
    with pytest.raises(TokenRefused):
        holder_of(claims, issuer(), now_s=NOW)


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": NOW - 29.9},
        {"iat": NOW + 30},
        {"nbf": NOW + 30},
        {"nbf": NOW - 5},
        {"iat": NOW - 86_400},
        {"aud": ["other", "inferflux"]},
    ],
)
def test_clocks_may_differ_by_the_leeway(claims: dict[str, Any]) -> None:
    assert holder(claims).subject == "alice"


def test_without_leeway_a_token_ends_with_its_second() -> None:
    assert refused({"exp": NOW}, leeway_s=0) == "expired"
    assert holder({"exp": NOW + 0.1, "iat": NOW, "nbf": NOW}, leeway_s=0).subject == "alice"


def test_the_tenant_is_a_claims_value_or_what_the_setting_makes_of_it() -> None:
    by_claim = {"tenant": None, "tenant_claim": "org"}
    assert holder({"org": "blue"}, **by_claim).record.tenant == "blue"
    mapped = by_claim | {"tenants": {"Blue Ltd.": "blue"}}
    assert holder({"org": "Blue Ltd."}, **mapped).record.tenant == "blue"
    assert holder({"org": ["Blue Ltd."]}, **mapped).record.tenant == "blue"
    assert refused({"org": "blue"}, **mapped) == "tenant"


@pytest.mark.parametrize(
    "value", ["", "Blue", "a b", "../b", "a.b", "a>", "a" * 64, None, 7, ["a", "b"], [], {"a": 1}, [["a"]]]
)
def test_a_token_without_one_good_tenant_is_refused(value: Any) -> None:
    assert refused({"org": value}, tenant=None, tenant_claim="org") == "tenant"


def test_a_claim_is_found_by_its_whole_name_or_along_dots() -> None:
    nested = {"realm": {"org": "blue"}}
    assert holder(nested, tenant=None, tenant_claim="realm.org").record.tenant == "blue"
    url = "https://example.com/org"
    assert holder({url: "blue"}, tenant=None, tenant_claim=url).record.tenant == "blue"
    both = nested | {"realm.org": "red"}
    assert holder(both, tenant=None, tenant_claim="realm.org").record.tenant == "red"
    assert refused({"realm": "blue"}, tenant=None, tenant_claim="realm.org") == "tenant"


def test_roles_are_those_that_the_setting_gives_for_a_claims_values() -> None:
    fields = {"roles_claim": "groups", "roles": {"staff": ["user", "viewer"], "ops": ["operator"]}}
    assert holder({"groups": ["staff", "admin", "ops"]}, **fields).record.roles == (
        "user",
        "viewer",
        "operator",
    )
    assert holder({"groups": "staff"}, **fields).record.roles == ("user", "viewer")
    assert holder({"groups": ["operator", "admin"]}, **fields).record.roles == ()
    assert holder({}, **fields, default_roles=["user"]).record.roles == ("user",)


@pytest.mark.parametrize("value", [None, 7, {"staff": True}, ["staff", 7], "", [""]])
def test_roles_of_another_form_give_nothing(value: Any) -> None:
    fields = {"roles_claim": "groups", "roles": {"staff": ["user"]}}
    assert holder({"groups": value}, **fields).record.roles == ()


def test_scopes_are_those_with_the_prefix_that_we_have() -> None:
    fields = {"scopes_claim": "scope", "scope_prefix": "inferflux:"}
    text = "openid inferflux:models inferflux:inference inferflux:root admin"
    assert holder({"scope": text}, **fields).record.scopes == ("inference", "models")
    assert holder({"scope": text.split()}, **fields).record.scopes == ("inference", "models")
    assert holder({"scope": "inference admin"}, scopes_claim="scope").record.scopes == ("inference", "admin")
    assert holder({"scope": "inference admin"}).record.scopes == ()


def test_what_holds_for_all_tokens_of_an_issuer_is_in_the_record() -> None:
    fields = {
        "models": ["llama*"],
        "worker_pools": ["gold"],
        "max_priority": 3,
        "cache_scope": "shared",
        "deterministic": True,
    }
    record = holder({}, **fields).record
    assert (record.models, record.worker_pools) == (("llama*",), ("gold",))
    assert (record.max_priority, record.cache_scope, record.is_deterministic) == (3, "shared", True)


@given(st.sets(st.sampled_from(Scope)), st.sets(st.sampled_from(Scope)), st.sampled_from(Scope))
def test_a_token_has_no_scope_that_its_issuer_may_not_give(
    named: set[Scope], allowed: set[Scope], asked: Scope
) -> None:
    token = holder({"scope": " ".join(named)}, scopes_claim="scope", allowed_scopes=sorted(allowed))
    may = expanded(named) & expanded(allowed)
    found = identify_token(token)
    assert found.access.scopes == may
    assert found.identity == token.identity
    with nullcontext() if asked in may else pytest.raises(PermissionDenied):
        authorize(found, asked)


def test_a_role_of_more_than_its_issuer_may_give_is_cut_down() -> None:
    token = holder({"groups": ["root"]}, roles_claim="groups", roles={"root": ["admin"]})
    found = identify_token(token, roles=[BUILTIN["admin"]])
    assert found.access.scopes == {Scope.INFERENCE, Scope.MODELS}


@given(
    st.dictionaries(
        st.sampled_from(["iss", "aud", "sub", "iat", "exp", "nbf", "org", "groups", "scope"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
            ),
            max_leaves=6,
        ),
    )
)
def test_claims_of_any_form_are_taken_or_refused_and_nothing_else(claims: dict[str, Any]) -> None:
    fields = {"roles_claim": "groups", "roles": {"a": ["user"]}, "scopes_claim": "scope"}
    with suppress(TokenRefused):
        holder(claims, tenant=None, tenant_claim="org", **fields)
