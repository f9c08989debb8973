"""Guardrails as policy serves them: changes, whom they hold for, and what services and strangers get."""

# ruff: noqa: RUF001 - letters that look like others are what this is about

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

import grpc
import grpc.aio
import pytest
from harness.policy import PolicyProcess, bearer, refusal

from inferflux.common.contract.errors import from_rpc
from inferflux.policy.decide.guardrails.store import MAX_AGE_S
from inferflux.v1 import guardrails_pb2, policy_pb2

from .conftest import Running, StartPolicy

Blocked = guardrails_pb2.BlockedText
Rules = guardrails_pb2.GuardrailRules


def new_tenant() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


class Admin:
    """Calls what administrators may."""

    def __init__(self, running: Running) -> None:
        self._stub = running.policy.stranger
        self._metadata = bearer(running.admin)

    async def call(self, method: str, request: object) -> Any:
        return await getattr(self._stub, method)(request, metadata=self._metadata, timeout=10)

    async def set(
        self, tenant: str = "", model: str = "", *, version: int = 0, **rules: Any
    ) -> guardrails_pb2.GuardrailsSummary:
        given = guardrails_pb2.Guardrails(tenant=tenant, model=model, version=version, rules=Rules(**rules))
        request = guardrails_pb2.SetGuardrailsRequest(guardrails=given)
        made: guardrails_pb2.SetGuardrailsResponse = await self.call("SetGuardrails", request)
        return made.guardrails

    async def get(self, tenant: str = "", model: str = "") -> guardrails_pb2.Guardrails:
        request = guardrails_pb2.GetGuardrailsRequest(tenant=tenant, model=model)
        found: guardrails_pb2.GetGuardrailsResponse = await self.call("GetGuardrails", request)
        return found.guardrails

    async def delete(self, tenant: str = "", model: str = "", *, version: int = 0) -> None:
        request = guardrails_pb2.DeleteGuardrailsRequest(tenant=tenant, model=model, version=version)
        await self.call("DeleteGuardrails", request)

    async def names(self) -> list[str]:
        found = await self.call("ListGuardrails", guardrails_pb2.ListGuardrailsRequest())
        return [f"{each.tenant}/{each.model}" for each in found.guardrails]

    async def check(self, text: str, tenant: str, model: str = "demo", tokens: int = 0) -> str:
        """Which rule a prompt would break."""
        request = guardrails_pb2.CheckGuardrailsRequest(tenant=tenant, model=model, text=text, tokens=tokens)
        found = (await self.call("CheckGuardrails", request)).finding
        return f"{found.tenant}/{found.model} {found.kind}[{found.index}]" if found.kind else ""


@pytest.fixture
def admin(running: Running) -> Admin:
    return Admin(running)


async def reserve(
    policy: PolicyProcess, tenant: str, text: str | None, *, tokens: int = 1
) -> policy_pb2.ReserveResponse:
    request = policy_pb2.ReserveRequest(
        request_id="r1",
        attempt_id=uuid.uuid4().hex,
        tenant=tenant,
        key_id="key_" + "0" * 16,
        model="demo",
        prompt_tokens=tokens,
        max_tokens=1,
        text=text,
    )
    return await policy.stub.Reserve(request, timeout=10)  # type: ignore[no-any-return]


async def test_a_set_lives(admin: Admin) -> None:
    tenant = new_tenant()
    made = await admin.set(tenant, "demo", blocked=[Blocked(text="No", is_word=True)], patterns=["x+"])
    assert (made.n_blocked, made.n_patterns, made.guards_stream) == (1, 1, False)
    assert made.changed_by.startswith("key_")
    assert made.changed_at.seconds > 0
    found = await admin.get(tenant, "demo")
    assert (found.rules.blocked[0].text, found.rules.patterns[0]) == ("No", "x+")
    assert found.version == made.version
    assert f"{tenant}/demo" in await admin.names()
    changed = await admin.set(tenant, "demo", version=made.version, max_tokens=5)
    assert changed.version > made.version
    assert (await admin.get(tenant, "demo")).rules == Rules(max_tokens=5)
    await admin.delete(tenant, "demo", version=changed.version)
    assert f"{tenant}/demo" not in await admin.names()


async def test_a_change_of_a_set_that_was_changed_meanwhile_is_refused(admin: Admin) -> None:
    tenant = new_tenant()
    first = await admin.set(tenant, max_tokens=1)
    results = await asyncio.gather(
        *(admin.set(tenant, version=first.version, max_tokens=2 + i) for i in range(10)),
        return_exceptions=True,
    )
    done = [each for each in results if isinstance(each, guardrails_pb2.GuardrailsSummary)]
    assert len(done) == 1
    errors = [from_rpc(each) for each in results if isinstance(each, grpc.aio.AioRpcError)]
    assert {error.reason for error in errors} == {"VERSION_MISMATCH"}
    for call in (
        admin.delete(tenant, version=first.version),
        admin.set(new_tenant(), version=1, max_tokens=1),
    ):
        assert from_rpc(await refusal(call)).reason == "VERSION_MISMATCH"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"tenant": "A"}, "guardrails.tenant"),
        ({"model": "m" * 257}, "guardrails.model"),
        ({"model": "a\nb"}, "guardrails.model"),
        ({"rules": {}}, "guardrails.rules"),
        ({"rules": {"patterns": ["a", "("]}}, "guardrails.rules.patterns[1]"),
        ({"rules": {"patterns": ["(?=x)"]}}, "guardrails.rules.patterns[0]"),
        ({"rules": {"patterns": ["((x{1,500}){1,500}){1,500}"]}}, "guardrails.rules.patterns[0]"),
        ({"rules": {"patterns": ["a*"]}}, "guardrails.rules.patterns[0]"),
        ({"rules": {"patterns": [".{0,999}z"] * 7, "guards_stream": True}}, "guardrails.rules.patterns"),
        ({"rules": {"blocked": [{"text": "\u200b"}]}}, "guardrails.rules.blocked[0].text"),
        ({"rules": {"max_tokens": 2, "stream_window": 2000}}, "guardrails.rules.stream_window"),
    ],
)
async def test_a_set_that_cannot_be_is_refused_by_its_field_and_leaves_nothing_behind(
    admin: Admin, given: Mapping[str, Any], field: str
) -> None:
    before = await admin.names()
    made: dict[str, Any] = {"tenant": new_tenant(), "rules": {"max_tokens": 1}, **given}
    request = guardrails_pb2.SetGuardrailsRequest(guardrails=guardrails_pb2.Guardrails(**made))
    error = from_rpc(await refusal(admin.call("SetGuardrails", request)))
    assert getattr(error, "field", "") == field
    assert await admin.names() == before


async def test_what_is_not_there_is_not_found(admin: Admin) -> None:
    for call in (admin.get(new_tenant()), admin.delete(new_tenant())):
        assert from_rpc(await refusal(call)).reason == "UNKNOWN_GUARDRAILS"


async def test_a_prompt_is_held_to_the_sets_of_its_tenant_and_the_refusal_says_which_rule(
    running: Running, admin: Admin
) -> None:
    tenant = new_tenant()
    await admin.set(tenant, blocked=[Blocked(text="harmless"), Blocked(text="Verboten")], max_tokens=9)
    answer = await reserve(running.policy, tenant, "a fine text")
    assert not answer.stream_guards
    for text, tokens, reason, rule in (
        ("it is ＶＥＲＢＯ\u200bＴＥＮ", 1, "CONTENT_FILTER", f"{tenant}/ blocked[1]"),
        ("fine", 10, "PROMPT_TOO_LARGE", f"{tenant}/ max_tokens"),
    ):
        refused = await refusal(reserve(running.policy, tenant, text, tokens=tokens))
        error = from_rpc(refused)
        assert refused.code() == grpc.StatusCode.PERMISSION_DENIED
        assert (error.reason, error.headers["x-inferflux-guardrail"]) == (reason, rule)
        assert "verboten" not in (error.message + str(dict(error.headers))).casefold()
    assert from_rpc(await refusal(reserve(running.policy, tenant, None))).reason == "GUARDRAILS_NEED_TEXT"
    await reserve(running.policy, new_tenant(), "it is verboten")
    assert await admin.check("verboten", tenant) == f"{tenant}/ blocked[1]"
    assert await admin.check("fine", tenant) == ""


async def test_a_refused_prompt_reserves_nothing(running: Running, admin: Admin) -> None:
    tenant = new_tenant()
    await running.policy.limit(running.admin, f"tenant:{tenant}", tokens_per_day=100, concurrent_requests=5)
    await admin.set(tenant, blocked=[Blocked(text="no")])
    await refusal(reserve(running.policy, tenant, "no"))
    assert set((await running.policy.used(running.admin, f"tenant:{tenant}")).values()) == {0}


async def test_keys_are_told_whether_guardrails_want_texts_and_hold_answers(
    running: Running, admin: Admin
) -> None:
    async def hints(secret: str) -> tuple[bool, bool]:
        admitted = await running.policy.admit(secret)
        return admitted.wants_text, admitted.guards_stream

    tenant = new_tenant()
    secret = (await running.policy.create_key(running.admin, tenant=tenant)).secret
    assert await hints(secret) == (False, False)
    await admin.set(tenant, max_tokens=1)
    assert await hints(secret) == (False, False)
    await admin.set(tenant, "demo", blocked=[Blocked(text="no")])
    assert await hints(secret) == (True, False)
    await admin.set(tenant, "demo", blocked=[Blocked(text="no")], guards_stream=True)
    assert await hints(secret) == (True, True)
    await admin.delete(tenant, "demo")
    assert await hints(secret) == (False, False)


async def test_reserve_is_skipped_only_where_nothing_is_to_be_decided(running: Running, admin: Admin) -> None:
    async def skips() -> bool:
        return (await running.policy.admit(secret, is_counted=True)).skips_reserve

    tenant = new_tenant()
    secret = (await running.policy.create_key(running.admin, tenant=tenant)).secret
    assert await skips()
    await admin.set(tenant, "demo", max_tokens=1)
    assert not await skips()
    await admin.delete(tenant, "demo")
    assert await skips()
    await running.policy.limit(running.admin, f"tenant:{tenant}", tokens_per_day=100)
    assert not await skips()


async def test_what_one_process_writes_others_hold_to_soon(
    running: Running, admin: Admin, start_policy: StartPolicy
) -> None:
    other = await start_policy(running.url)
    tenant = new_tenant()
    await reserve(other, tenant, "verboten")
    await admin.set(tenant, blocked=[Blocked(text="verboten")])
    await asyncio.sleep(MAX_AGE_S)  # the longest time that an index is used without asking
    assert from_rpc(await refusal(reserve(other, tenant, "verboten"))).reason == "CONTENT_FILTER"


async def test_gateways_get_the_rules_of_answers_and_strangers_do_not(running: Running, admin: Admin) -> None:
    tenant = new_tenant()
    made = await admin.set(tenant, patterns=["x+"], guards_stream=True, stream_window=7)
    answer = await reserve(running.policy, tenant, "fine")
    assert [(each.tenant, each.version) for each in answer.stream_guards] == [(tenant, made.version)]
    request = guardrails_pb2.GetStreamGuardsRequest(tenant=tenant, model="demo")
    (found,) = (await running.policy.stub.GetStreamGuards(request, timeout=10)).guardrails
    assert (found.rules.patterns[0], found.rules.stream_window) == ("x+", 7)
    error = from_rpc(await refusal(running.policy.stranger.GetStreamGuards(request, timeout=10)))
    assert error.reason == "NO_SERVICE_KEY"


async def test_a_list_of_ten_thousand_entries_is_set_held_to_and_read(running: Running, admin: Admin) -> None:
    tenant = new_tenant()
    texts = [Blocked(text=f"entry number {i}.") for i in range(10_000)]
    made = await admin.set(tenant, blocked=texts)
    assert made.n_blocked == 10_000
    refused = from_rpc(await refusal(reserve(running.policy, tenant, "it has Entry number 9999.")))
    assert refused.headers["x-inferflux-guardrail"] == f"{tenant}/ blocked[9999]"
    await reserve(running.policy, tenant, "it has entry number 10000.")
    assert len((await admin.get(tenant)).rules.blocked) == 10_000
    await admin.delete(tenant)


async def test_rules_that_are_too_large_are_refused(admin: Admin) -> None:
    texts = [Blocked(text=f"{i:x>250}") for i in range(4300)]
    error = await refusal(admin.set(new_tenant(), blocked=texts))
    assert error.code() in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
