"""The guardrails of answers: fetched and compiled once for each version, and all that hold."""

from __future__ import annotations

import pytest

from inferflux.common.contract.errors import Unavailable
from inferflux.common.text.guardrails.compiled import Finding, Kind
from inferflux.gateway.stream.chunk_guard import ChunkGuard
from inferflux.gateway.stream.stream_guards import StreamGuards, model_told_by
from inferflux.v1 import generation_pb2, guardrails_pb2, tokens_pb2

Set = guardrails_pb2.Guardrails
Rules = guardrails_pb2.GuardrailRules
Version = guardrails_pb2.GuardrailsVersion
Blocked = guardrails_pb2.BlockedText


class Policy:
    """Has sets, sends the rules of a few at a time, and notes which it sent."""

    def __init__(self, *sets: Set, at_once: int = 1) -> None:
        self.sets = list(sets)
        self.sent: list[str] = []
        self._at_once = at_once

    async def stream_guards(
        self, request: guardrails_pb2.GetStreamGuardsRequest
    ) -> guardrails_pb2.GetStreamGuardsResponse:
        known = {(each.tenant, each.model, each.version) for each in request.known}
        answer = guardrails_pb2.GetStreamGuardsResponse()
        left = self._at_once
        for each in self.sets:
            made = answer.guardrails.add(tenant=each.tenant, model=each.model, version=each.version)
            if left and (each.tenant, each.model, each.version) not in known:
                left -= 1
                made.rules.CopyFrom(each.rules)
                self.sent.append(f"{each.tenant}/{each.model} {each.version}")
        return answer

    def versions(self) -> list[Version]:
        return [Version(tenant=each.tenant, model=each.model, version=each.version) for each in self.sets]


def a_set(tenant: str, version: int, *texts: str, patterns: tuple[str, ...] = ()) -> Set:
    rules = Rules(blocked=[Blocked(text=text) for text in texts], patterns=patterns, guards_stream=True)
    return Set(tenant=tenant, version=version, rules=rules)


def found_by(guard: ChunkGuard | None, text: str) -> Finding | None:
    assert guard is not None
    guard.take(tokens_pb2.TokenChunk(token_ids=[1], text=text))
    guard.take(tokens_pb2.TokenChunk(offset=1, finished=tokens_pb2.Finished()))
    return guard.finding


async def test_all_sets_hold_and_each_finding_names_its_own() -> None:
    policy = Policy(a_set("", 1, "a1", "b1", patterns=("x+",)), a_set("acme", 2, "c1", patterns=("y+", "z+")))
    guards = StreamGuards(policy)
    names = {}
    for text in ("b1", "c1", "x", "zz", "fine"):
        guard = await guards.of_reservation("acme", "demo", policy.versions())
        finding = found_by(guard, text)
        names[text] = finding.name if finding is not None else ""
    assert names == {
        "b1": "/ blocked[1]",
        "c1": "acme/ blocked[0]",
        "x": "/ pattern[0]",
        "zz": "acme/ pattern[1]",
        "fine": "",
    }


async def test_rules_are_fetched_once_for_each_version() -> None:
    policy = Policy(a_set("", 1, "a1"), a_set("acme", 2, "b1"))
    guards = StreamGuards(policy)
    for _ in range(2):
        assert await guards.of_reservation("acme", "demo", policy.versions()) is not None
        assert await guards.of("acme", "demo") is not None
    assert policy.sent == ["/ 1", "acme/ 2"]
    policy.sets[1] = a_set("acme", 5, "c1")
    guard = await guards.of_reservation("acme", "demo", policy.versions())
    assert policy.sent == ["/ 1", "acme/ 2", "acme/ 5"]
    assert found_by(guard, "c1") == Finding(Kind.BLOCKED, 0, "acme/")


async def test_without_sets_nothing_is_asked() -> None:
    policy = Policy()
    assert await StreamGuards(policy).of_reservation("acme", "demo", []) is None
    assert await StreamGuards(policy).of("acme", "demo") is None
    assert policy.sent == []


async def test_rules_that_this_gateway_cannot_use_let_nothing_through() -> None:
    policy = Policy(Set(tenant="acme", version=1, rules=Rules(patterns=["("], guards_stream=True)))
    with pytest.raises(Unavailable) as caught:
        await StreamGuards(policy).of_reservation("acme", "demo", policy.versions())
    assert caught.value.reason == "GUARDRAILS_UNUSABLE"


async def test_rules_that_policy_does_not_send_let_nothing_through() -> None:
    policy = Policy(a_set("acme", 1, "a1"), at_once=0)
    with pytest.raises(Unavailable) as caught:
        await StreamGuards(policy).of_reservation("acme", "demo", policy.versions())
    assert caught.value.reason == "GUARDRAILS_UNUSABLE"


def test_the_model_is_told_by_the_chunk_that_names_it() -> None:
    token = tokens_pb2.TokenChunk(epoch=1, token_ids=[1], text="x").SerializeToString()
    finished = tokens_pb2.Finished(reason=generation_pb2.FINISH_REASON_STOP)
    last = tokens_pb2.TokenChunk(epoch=1, offset=1, finished=finished, model="demo").SerializeToString()
    assert model_told_by([token, b"\xff", last]) == "demo"
    assert model_told_by([token]) == ""
