"""Cedar: policies and entities out of files, evaluated in this process.

A caller is `Caller::"<key id>"`, in its `Tenant` and its `Role`s. It asks to do `Action::"<method>"`, in
`Action::"<scope>"`, on `Service::"inferflux"`; then `Action::"reserve"` on a `Model`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import cedarpy

from .facts import PERMITTED, BackendFailed, Decision, Facts, Step

NAME = "cedar"
# Entities that InferFlux makes for each question.
OWN_TYPES = frozenset({"Caller", "Action"})
RESERVE = "reserve"


class CedarRules:
    """Policies and entities, parsed.

    Args:
        policies: of files, by name: Cedar's own syntax.
        entities: JSON, as `cedar` takes it; "" for none.

    Raises:
        ValueError: they cannot be used; says which, and why.
    """

    def __init__(self, policies: Mapping[str, str], entities: str = "") -> None:
        for name, text in policies.items():
            try:
                cedarpy.PolicySet.from_str(text)
            except ValueError as error:
                raise ValueError(f"{name} is not Cedar: {error}") from None
        self._policies = cedarpy.PolicySet.from_str("\n".join(policies.values()))
        if not len(self._policies):
            raise ValueError("there is no policy, so that nothing would be permitted")
        self._entities = _parse_entities(entities or "[]")

    def decide(self, facts: Facts) -> Decision:
        """Raises:
        BackendFailed: a policy cannot be evaluated. Cedar would leave it out, also one that forbids.
        """
        action = RESERVE if facts.step is Step.RESERVE else facts.method
        try:
            entities = self._entities.with_added_json_str(json.dumps(_entities_of(facts, action)))
            answer = cedarpy.is_authorized(_request_of(facts, action), self._policies, entities)
        except ValueError as error:
            raise BackendFailed(str(error)) from None
        if answer.diagnostics.errors:
            raise BackendFailed("; ".join(answer.diagnostics.errors))
        if answer.allowed:
            return PERMITTED
        if answer.decision is not cedarpy.Decision.Deny:
            raise BackendFailed("Cedar came to no decision")
        return Decision(is_permitted=False, reason=_reason(answer.diagnostics))


class Cedar:
    """Decides by rules that can be replaced."""

    name = NAME

    def __init__(self, rules: CedarRules) -> None:
        self.rules = rules

    async def decide(self, facts: Facts) -> Decision:
        """Raises:
        BackendFailed: a policy cannot be evaluated.
        """
        return self.rules.decide(facts)


def _parse_entities(text: str) -> cedarpy.Entities:
    try:
        parsed = cedarpy.Entities.from_json_str(text)
    except ValueError as error:
        raise ValueError(f"the entities cannot be used: {error}") from None
    for each in json.loads(str(parsed)):
        if (kind := each["uid"]["type"]) in OWN_TYPES:
            raise ValueError(f"the entities have one of the type {kind}: InferFlux makes these itself")
    return parsed


def _uid(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "id": name}


def _entities_of(facts: Facts, action: str) -> Sequence[Mapping[str, Any]]:
    caller = {
        "uid": _uid("Caller", facts.key_id),
        "attrs": {
            "tenant": facts.tenant,
            "scopes": facts.scopes,
            "roles": facts.roles,
            "issuer": facts.issuer,
            "subject": facts.subject,
        },
        "parents": [_uid("Tenant", facts.tenant), *(_uid("Role", role) for role in facts.roles)],
    }
    groups = [_uid("Action", facts.scope)] if facts.scope else []
    return caller, {"uid": _uid("Action", action), "attrs": {}, "parents": groups}


def _request_of(facts: Facts, action: str) -> dict[str, Any]:
    context: dict[str, Any] = {"method": facts.method}
    resource = _uid("Service", "inferflux")
    if facts.step is Step.RESERVE:
        resource = _uid("Model", facts.model)
        context |= {
            "priority": facts.priority,
            "prompt_tokens": facts.prompt_tokens,
            "max_tokens": facts.max_tokens,
        }
    return {
        "principal": _uid("Caller", facts.key_id),
        "action": _uid("Action", action),
        "resource": resource,
        "context": context,
    }


def _reason(diagnostics: cedarpy.Diagnostics) -> str:
    """The policies that forbid it, by their `@id`."""
    named = diagnostics.id_annotations_by_reason
    ids = sorted(named.get(each) or each for each in diagnostics.reasons)
    return f"forbidden by {', '.join(ids)}" if ids else "no policy permits it"
