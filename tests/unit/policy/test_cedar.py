"""What Cedar's policies see of a call, and what their answers mean."""

from __future__ import annotations

import json

import pytest
from harness.decisions import call, reservation

from inferflux.policy.decide.decisions.cedar import CedarRules
from inferflux.policy.decide.decisions.facts import BackendFailed, Facts

ALL = "permit(principal, action, resource);"


def rules(*policies: str, entities: str = "") -> CedarRules:
    return CedarRules({"p.cedar": "\n".join(policies)}, entities)


def permits(condition: str, facts: Facts) -> bool:
    return rules(f"permit(principal, action, resource) when {{ {condition} }};").decide(facts).is_permitted


@pytest.mark.parametrize(
    "condition",
    [
        'principal == Caller::"key_0000000000000000"',
        'principal in Tenant::"acme"',
        'principal in Role::"support"',
        'principal.tenant == "acme"',
        'principal.scopes.contains("models")',
        'principal.roles.contains("support")',
        'context.method == "InferenceService/Chat"',
    ],
)
def test_policies_see_who_calls(condition: str) -> None:
    assert permits(condition, call())
    assert permits(condition, reservation())
    other = {
        "tenant": "other",
        "key_id": "key_" + "1" * 16,
        "roles": (),
        "scopes": (),
        "method": "GET /v1/models",
    }
    assert not permits(condition, call(**other))


@pytest.mark.parametrize(
    "condition",
    [
        'action == Action::"InferenceService/Chat"',
        'action in Action::"inference"',
        'resource == Service::"inferflux"',
    ],
)
def test_policies_see_which_method_of_which_scope_is_called(condition: str) -> None:
    assert permits(condition, call())
    assert not permits(condition, reservation())


@pytest.mark.parametrize(
    "condition",
    [
        'action == Action::"reserve"',
        'resource == Model::"small"',
        "context has priority && context.priority == 2",
        "context has prompt_tokens && context.prompt_tokens == 10",
        "context has max_tokens && context.max_tokens == 20",
    ],
)
def test_policies_see_what_a_request_asks_for(condition: str) -> None:
    assert permits(condition, reservation())
    assert not permits(condition, call())


def test_names_with_any_letters_are_names() -> None:
    odd = 'a"::b\\ \n☃'
    assert permits(f"resource == Model::{json.dumps(odd, ensure_ascii=False)}", reservation(model=odd))


def test_entities_of_a_file_put_tenants_into_groups() -> None:
    entities = json.dumps(
        [{"uid": {"type": "Tenant", "id": "acme"}, "attrs": {}, "parents": [{"type": "Plan", "id": "free"}]}]
    )
    forbid = '@id("free-is-small") forbid(principal in Plan::"free", action, resource == Model::"large");'
    found = rules(ALL, forbid, entities=entities)
    assert found.decide(reservation(model="small")).is_permitted
    assert found.decide(reservation(model="large", tenant="other")).is_permitted
    refused = found.decide(reservation(model="large"))
    assert (refused.is_permitted, refused.reason) == (False, "forbidden by free-is-small")


def test_what_no_policy_permits_is_refused() -> None:
    refused = rules('permit(principal in Tenant::"other", action, resource);').decide(call())
    assert (refused.is_permitted, refused.reason) == (False, "no policy permits it")


def test_a_policy_that_cannot_be_evaluated_is_no_decision_though_cedar_would_leave_it_out() -> None:
    """Otherwise a slip in a policy that forbids would permit."""
    found = rules(ALL, "forbid(principal, action, resource) when { context.promt_tokens > 5 };")
    with pytest.raises(BackendFailed, match="promt_tokens"):
        found.decide(reservation())


@pytest.mark.parametrize(
    ("policies", "entities", "why"),
    [
        ({"a.cedar": ALL, "b.cedar": "permit("}, "", "b.cedar is not Cedar"),
        ({"a.cedar": "// nothing"}, "", "no policy"),
        ({"a.cedar": ALL}, "[", "entities"),
        ({"a.cedar": ALL}, "{}", "entities"),
        (
            {"a.cedar": ALL},
            '[{"uid": {"type": "Caller", "id": "k"}, "attrs": {}, "parents": []}]',
            "type Caller",
        ),
        (
            {"a.cedar": ALL},
            '[{"uid": {"__entity": {"type": "Action", "id": "k"}}, "attrs": {}, "parents": []}]',
            "type Action",
        ),
    ],
)
def test_rules_that_cannot_be_used_say_why(policies: dict[str, str], entities: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        CedarRules(policies, entities)
