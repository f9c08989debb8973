"""Decision backends beside a policy process: Cedar in it, and OPA's data API over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from harness.audit import lines_in
from harness.issuers import issuers_variables, scripted
from harness.oidc_keys import SigningKey
from harness.opa import Answer, OpaServer, by_rules, response, saying, serving
from harness.policy import PolicyProcess, bearer, refusal, until
from harness.servers import ServerProcess

from inferflux.common.calls.grpc_metadata import DECISION
from inferflux.common.contract.errors import from_rpc
from inferflux.policy.decide import keys
from inferflux.v1 import policy_pb2

from .conftest import StartPolicy

ALL = "permit(principal, action, resource);"
PAGE = Path(__file__).resolve().parents[3] / "docs" / "policy.md"


@dataclass(frozen=True)
class World:
    """A policy process with decision backends, and a tenant of the test's own.

    Attributes:
        admin: the bootstrap key.
    """

    policy: PolicyProcess
    admin: str
    tenant: str
    key_id: str
    secret: str

    async def admit(
        self, method: str = "InferenceService/Chat", scope: str = "inference"
    ) -> policy_pb2.AdmitResponse:
        request = policy_pb2.AdmitRequest(
            credential=self.secret, scope=scope, request_id=f"r-{uuid.uuid4().hex[:8]}", method=method
        )
        return await self.policy.stub.Admit(request, timeout=10)  # type: ignore[no-any-return]

    async def reserve(self, **changes: Any) -> policy_pb2.ReserveResponse:
        admitted = await self.admit()
        fields: dict[str, Any] = {
            "request_id": f"r-{uuid.uuid4().hex[:8]}",
            "attempt_id": uuid.uuid4().hex,
            "tenant": self.tenant,
            "key_id": self.key_id,
            "model": "small",
            "prompt_tokens": 10,
            "max_tokens": 20,
            "facts": admitted.facts,
        }
        request = policy_pb2.ReserveRequest(**(fields | changes))
        return await self.policy.stub.Reserve(request, timeout=10)  # type: ignore[no-any-return]


StartWorld = Callable[..., Awaitable[World]]


@pytest.fixture
async def start(start_policy: StartPolicy, policy_valkey: ServerProcess) -> StartWorld:
    """Start a policy process with these settings, and a tenant whose key has inference, models and a role."""

    async def start_world(*, roles: tuple[str, ...] = (), **variables: str) -> World:
        admin = keys.generate()
        chosen: dict[str, Any] = {"INFERFLUX_POLICY_BOOTSTRAP_KEY": admin, **variables}
        policy = await start_policy(policy_valkey.url, **chosen)
        tenant = f"t-{uuid.uuid4().hex[:12]}"
        for role in roles:
            request = policy_pb2.SetRoleRequest(role=policy_pb2.Role(name=role, scopes=["models"]))
            await policy.stranger.SetRole(request, metadata=bearer(admin), timeout=10)
        made = await policy.create_key(admin, tenant=tenant, scopes=("inference", "models"), roles=roles)
        return World(policy, admin, tenant, made.api_key.key_id, made.secret)

    return start_world


def with_opa(server: OpaServer, order: str = "builtin,opa", **more: str) -> dict[str, str]:
    return {
        "INFERFLUX_POLICY_DECISIONS": order,
        "INFERFLUX_POLICY_OPA_URL": server.url,
        "INFERFLUX_HTTP_ALLOWED_NETWORKS": "127.0.0.1",
        "INFERFLUX_POLICY_DECISION_CACHE_S": "0",
    } | more


def with_cedar(folder: Path, *policies: str, order: str = "builtin,cedar", **more: str) -> dict[str, str]:
    (folder / "policies").mkdir(exist_ok=True)
    (folder / "policies" / "rules.cedar").write_text("\n".join(policies))
    return {
        "INFERFLUX_POLICY_DECISIONS": order,
        "INFERFLUX_POLICY_CEDAR_POLICIES": str(folder / "policies"),
    } | more


@pytest.fixture
async def opa() -> AsyncIterator[OpaServer]:
    """Permits."""
    async with serving(saying(result=True)) as server:
        yield server


def said(error: grpc.aio.AioRpcError) -> tuple[str, str, str]:
    own = from_rpc(error)
    return error.code().name, own.reason, own.message


def no_decision(backend: str) -> tuple[str, str, str]:
    return "UNAVAILABLE", "DECISION_UNAVAILABLE", f"the decision backend {backend} has not decided"


async def test_opa_is_told_who_calls_what_and_then_what_the_request_asks_for(
    start: StartWorld, opa: OpaServer
) -> None:
    world = await start(**with_opa(opa, INFERFLUX_POLICY_OPA_TOKEN="a-token"))
    opa.inputs.clear()
    await world.reserve(priority=3, text="a prompt")
    about = {
        "method": "InferenceService/Chat",
        "tenant": world.tenant,
        "key_id": world.key_id,
        "scopes": ["inference", "models"],
        "roles": [],
        "issuer": "",
        "subject": "",
    }
    amounts = {"model": "small", "priority": 3, "prompt_tokens": 10, "max_tokens": 20}
    assert opa.inputs == [
        {"step": "admit", "scope": "inference", **about},
        {"step": "reserve", **about, **amounts},
    ]
    assert "authorization: bearer a-token\r\n" in opa.heads[-1].lower()
    assert "a-token" not in world.policy.log_path.read_text()


async def test_a_refusal_of_opa_is_told_and_audited_with_its_reason(
    start: StartWorld, opa: OpaServer
) -> None:
    world = await start(**with_opa(opa))
    opa.answer = saying({"allow": False, "reason": "acme has spent its budget"})
    for asked in (world.admit(), world.reserve(), world.policy.list_keys(world.admin)):
        error = await refusal(asked)
        assert said(error) == ("PERMISSION_DENIED", "DECISION_DENIED", "opa: acme has spent its budget")
        assert from_rpc(error).headers[DECISION] == "opa: acme has spent its budget"
    audit = Path(world.policy.environment["INFERFLUX_AUDIT_DIR"])

    async def is_written() -> bool:
        return any(line.get("decided_by") for line in lines_in(audit))

    await until(is_written)
    line = next(line for line in lines_in(audit) if line.get("decided_by"))
    assert (line["method"], line["decision"], line["reason"], line["decided_by"]) == (
        "ListApiKeys",
        "refused",
        "DECISION_DENIED",
        "opa: acme has spent its budget",
    )


async def test_a_request_that_opa_refuses_reserves_nothing(start: StartWorld, opa: OpaServer) -> None:
    world = await start(**with_opa(opa))
    subject = f"tenant:{world.tenant}"
    await world.policy.limit(world.admin, subject, tokens_per_minute=1000, concurrent_requests=2)
    await world.reserve()
    used = await world.policy.used(world.admin, subject)
    assert used["tokens_per_minute"] == 30

    async def only_calls(about: dict[str, Any]) -> bytes:
        return response(b'{"result": true}' if about["step"] == "admit" else b'{"result": false}')

    opa.answer = only_calls
    assert said(await refusal(world.reserve()))[1:] == ("DECISION_DENIED", "opa: refused")
    assert await world.policy.used(world.admin, subject) == used


async def test_opa_sees_texts_only_where_a_setting_says_so(start: StartWorld, opa: OpaServer) -> None:
    world = await start(**with_opa(opa, INFERFLUX_POLICY_OPA_SEES_TEXT="true"))
    assert (await world.admit()).wants_text
    error = await refusal(world.reserve())
    assert from_rpc(error).reason == "GUARDRAILS_NEED_TEXT"
    await world.reserve(text="a prompt")
    assert [each["text"] for each in opa.of_step("reserve")] == ["a prompt"]
    blind = await start(**with_opa(opa))
    assert not (await blind.admit()).wants_text


async def test_administration_is_asked_about_too(start: StartWorld, opa: OpaServer) -> None:
    world = await start(**with_opa(opa))

    async def no_new_keys(about: dict[str, Any]) -> bytes:
        allow = about["method"] != "PolicyService/CreateApiKey"
        return response(json.dumps({"result": {"allow": allow, "reason": "keys are frozen"}}).encode())

    opa.answer = no_new_keys
    assert said(await refusal(world.policy.create_key(world.admin))) == (
        "PERMISSION_DENIED",
        "DECISION_DENIED",
        "opa: keys are frozen",
    )
    await world.policy.list_keys(world.admin)
    assert (opa.inputs[-1]["method"], opa.inputs[-1]["scope"]) == ("PolicyService/ListApiKeys", "policy:read")


async def test_a_caller_with_a_token_is_known_by_its_issuer_and_subject(
    start: StartWorld, opa: OpaServer, tmp_path: Path
) -> None:
    forbid = '@id("not-mallory") forbid(principal, action, resource) when { principal.subject == "mallory" };'
    async with scripted(SigningKey.rsa()) as issuer:
        fields = {
            "issuer": issuer.issuer,
            "audiences": ["inferflux"],
            "tenant_claim": "org",
            "scopes_claim": "scope",
        }
        both = {**with_cedar(tmp_path, ALL, forbid), **with_opa(opa, "builtin,cedar,opa")}
        world = await start(**(issuers_variables(fields) | both))
        token = issuer.token(sub="alice", org="acme", scope="inference models")
        admitted = await world.policy.admit(token)
        await world.reserve(tenant="acme", key_id=admitted.key_id, facts=admitted.facts)
        who = {(each["issuer"], each["subject"], each["key_id"]) for each in opa.inputs[-1:]}
        assert who == {(issuer.issuer, "alice", admitted.key_id)}
        refused = world.policy.admit(issuer.token(sub="mallory", org="acme", scope="inference models"))
        assert said(await refusal(refused))[2] == "cedar: forbidden by not-mallory"


async def test_strangers_are_refused_before_any_backend_is_asked(start: StartWorld, opa: OpaServer) -> None:
    world = await start(**with_opa(opa, "opa,builtin"))
    opa.inputs.clear()
    for credential in ("", "ifx_" + "x" * 43, "ü" * 50, "x" * 10_000):
        assert (await refusal(world.policy.admit(credential))).code() is grpc.StatusCode.UNAUTHENTICATED
    assert opa.inputs == []


@pytest.mark.parametrize(
    ("order", "asked", "reason"),
    [("builtin,opa", 0, "MISSING_SCOPE"), ("opa,builtin", 1, "DECISION_DENIED")],
)
async def test_policys_own_rules_hold_wherever_they_stand_in_the_order(
    start: StartWorld, opa: OpaServer, order: str, asked: int, reason: str
) -> None:
    world = await start(**with_opa(opa, order))
    assert from_rpc(await refusal(world.admit(scope="admin"))).reason == "MISSING_SCOPE"
    opa.answer = saying(result=False)
    opa.inputs.clear()
    assert from_rpc(await refusal(world.admit(scope="admin"))).reason == reason
    assert len(opa.inputs) == asked


async def test_equal_questions_are_asked_once_within_the_time_of_the_cache(
    start: StartWorld, opa: OpaServer
) -> None:
    world = await start(**with_opa(opa, INFERFLUX_POLICY_DECISION_CACHE_S="60"))
    opa.inputs.clear()
    for _ in range(5):
        await world.reserve()
    await world.reserve(model="large")
    assert [each["step"] for each in opa.inputs] == ["admit", "reserve", "reserve"]


async def hang(_about: dict[str, Any]) -> bytes:
    await asyncio.sleep(60)
    return b""


async def leave(_about: dict[str, Any]) -> bytes:
    return b""


def raw(data: bytes) -> Answer:
    async def answer(_about: dict[str, Any]) -> bytes:
        return data

    return answer


FAULTS: Mapping[str, Answer] = {
    "slow": hang,
    "closes": leave,
    "garbage": raw(b"\x00\xff" * 500 + b"\r\n\r\n"),
    "no JSON": raw(response(b"<html>")),
    "no UTF-8": raw(response(b"\xff\xfe{")),
    "nested": raw(response(b"[" * 30_000)),
    "undefined": raw(response(b"{}")),
    "number": raw(response(b'{"result": 1}')),
    "1 MB": raw(response(json.dumps({"result": True, "x": "x" * 1_000_000}).encode())),
    "error": raw(response(b'{"result": true}', status="500 Internal Server Error")),
    "another status": raw(response(b'{"result": true}', status="201 Created")),
    "compressed": raw(response(b'{"result": true}', headers="Content-Encoding: gzip\r\n")),
}


@pytest.fixture(scope="module")
async def faulty() -> AsyncIterator[OpaServer]:
    async with serving(saying(result=True)) as server:
        yield server


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
async def test_whatever_opa_does_instead_of_deciding_a_call_is_refused_unless_it_may_fail_open(
    start: StartWorld, opa: OpaServer, is_open: bool
) -> None:
    more = {"INFERFLUX_POLICY_DECISIONS_FAIL_OPEN": "opa"} if is_open else {}
    world = await start(**with_opa(opa, INFERFLUX_POLICY_DECISION_TIMEOUT_S="0.5", **more))
    async with serving(saying(result=True)) as other:
        redirect = response(b"", status="307 Temporary Redirect", headers=f"Location: {other.url}\r\n")
        for name, fault in {**FAULTS, "redirect": raw(redirect)}.items():
            opa.answer = fault
            if is_open:
                assert (await world.admit()).tenant == world.tenant, name
            else:
                assert said(await refusal(world.admit())) == no_decision("opa"), name
        assert other.inputs == []
    opa.stop()
    if is_open:
        await world.admit()
    else:
        assert said(await refusal(world.admit())) == no_decision("opa")
    again = OpaServer(saying(result=True), opa.port)
    await again.start()
    try:
        await world.admit()
        again.answer = saying(result=False)
        assert from_rpc(await refusal(world.admit())).reason == "DECISION_DENIED"
    finally:
        again.stop()
    outcome = "failed_open" if is_open else "failed"
    counted = await world.policy.metric(
        f'inferflux_policy_decisions_total{{backend="opa",outcome="{outcome}",source="asked"}}'
    )
    assert counted == len(FAULTS) + 2
    warnings = [line["event"] for line in world.policy.log_lines() if line["level"] == "warning"]
    assert any("PERMITTED" in event for event in warnings) == is_open


async def test_an_address_that_is_not_allowed_is_not_asked(start: StartWorld, opa: OpaServer) -> None:
    fail_open = {"INFERFLUX_POLICY_DECISIONS_FAIL_OPEN": "opa"}
    world = await start(**with_opa(opa, INFERFLUX_HTTP_ALLOWED_NETWORKS="", **fail_open))
    await world.admit()
    assert opa.inputs == []
    assert any("may be connected to" in line.get("why", "") for line in world.policy.log_lines())


async def test_cedar_decides_about_calls_and_requests(start: StartWorld, tmp_path: Path) -> None:
    world = await start(
        **with_cedar(
            tmp_path,
            ALL,
            '@id("no-lists") forbid(principal, action == Action::"ModelService/ListModels", resource);',
            '@id("not-large") forbid(principal, action == Action::"reserve", resource == Model::"large");',
        )
    )
    await world.admit("ModelService/GetModel", "models")
    assert said(await refusal(world.admit("ModelService/ListModels", "models"))) == (
        "PERMISSION_DENIED",
        "DECISION_DENIED",
        "cedar: forbidden by no-lists",
    )
    await world.reserve(model="small")
    assert said(await refusal(world.reserve(model="large")))[2] == "cedar: forbidden by not-large"


async def test_a_policy_that_cannot_be_evaluated_refuses(start: StartWorld, tmp_path: Path) -> None:
    slip = 'forbid(principal, action == Action::"reserve", resource) when { context.tokens > 5 };'
    world = await start(**with_cedar(tmp_path, ALL, slip))
    await world.admit()
    assert said(await refusal(world.reserve())) == no_decision("cedar")


async def test_the_first_refusal_decides_and_later_backends_are_not_asked(
    start: StartWorld, opa: OpaServer, tmp_path: Path
) -> None:
    forbid = '@id("not-large") forbid(principal, action == Action::"reserve", resource == Model::"large");'
    both = {**with_cedar(tmp_path, ALL, forbid), **with_opa(opa, "cedar,builtin,opa")}
    world = await start(**both)
    opa.inputs.clear()
    assert said(await refusal(world.reserve(model="large")))[2] == "cedar: forbidden by not-large"
    assert opa.of_step("reserve") == []
    opa.answer = saying({"allow": False, "reason": "nor small"})
    assert said(await refusal(world.reserve()))[2] == "opa: nor small"


async def test_changed_policies_hold_and_broken_ones_change_nothing(
    start: StartWorld, tmp_path: Path
) -> None:
    world = await start(**with_cedar(tmp_path, ALL, INFERFLUX_POLICY_DECISION_CACHE_S="60"))
    await world.admit()
    path = tmp_path / "policies" / "rules.cedar"
    forbid = '@id("closed") forbid(principal, action in Action::"inference", resource);'

    async def is_refused() -> bool:
        try:
            await world.admit()
        except grpc.aio.AioRpcError as error:
            assert from_rpc(error).message == "cedar: forbidden by closed"  # noqa: PT017
            return True
        return False

    path.write_text(f"{ALL}\n{forbid}")
    await until(is_refused)
    counter = 'inferflux_policy_decision_reloads_total{backend="cedar",outcome='
    assert await world.policy.metric(counter + '"used"}') == 1
    for n_refused, broken in enumerate(("permit(", "", "\x00"), 1):
        path.write_text(broken)

        async def is_counted(expected: int = n_refused) -> bool:
            return await world.policy.metric(counter + '"refused"}') == expected

        await until(is_counted)
        assert await is_refused()
    errors = [line for line in world.policy.log_lines() if line["level"] == "error"]
    assert len(errors) == 3
    assert str(path) in errors[0]["why"]
    path.unlink()
    await until(lambda: _is(world.policy.metric(counter + '"refused"}'), 4))
    assert await is_refused()
    (tmp_path / "policies" / "other.cedar").write_text(ALL)
    await until(lambda: _is_not(is_refused()))


async def _is(value: Awaitable[float], expected: float) -> bool:
    return await value == expected


async def _is_not(value: Awaitable[bool]) -> bool:
    return not await value


@pytest.mark.parametrize(
    ("policies", "entities", "why"),
    [
        ("permit(", None, "rules.cedar is not Cedar"),
        ("", None, "no policy"),
        (ALL, "{", "entities"),
        (ALL, '[{"uid": {"type": "Caller", "id": "k"}, "attrs": {}, "parents": []}]', "type Caller"),
    ],
)
async def test_rules_that_cannot_be_used_stop_the_start(
    start_policy: StartPolicy,
    policy_valkey: ServerProcess,
    tmp_path: Path,
    policies: str,
    entities: str | None,
    why: str,
) -> None:
    settings: dict[str, Any] = with_cedar(tmp_path, policies)
    if entities is not None:
        (tmp_path / "entities.json").write_text(entities)
        settings["INFERFLUX_POLICY_CEDAR_ENTITIES"] = str(tmp_path / "entities.json")
    process = await start_policy(policy_valkey.url, wait=False, **settings)
    assert process.process is not None
    assert await asyncio.to_thread(process.process.wait, 20) == 2
    last = process.log_path.read_text().splitlines()[-1]
    assert last.startswith("policy: INFERFLUX_POLICY_CEDAR_POLICIES: ")
    assert why in last


async def test_without_backends_no_request_has_facts_and_none_needs_them(start: StartWorld) -> None:
    world = await start()
    admitted = await world.admit()
    assert not admitted.HasField("facts")
    await world.reserve(facts=None)


async def test_a_request_that_a_process_without_backends_has_admitted_is_refused_by_one_with_them(
    start: StartWorld, tmp_path: Path
) -> None:
    world = await start(**with_cedar(tmp_path, ALL))
    assert from_rpc(await refusal(world.reserve(facts=None))).reason == "DECISION_UNAVAILABLE"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"priority": 101}, "priority"),
        ({"priority": -101}, "priority"),
        ({"facts": policy_pb2.DecisionFacts(method="a\nb")}, "facts.method"),
        ({"facts": policy_pb2.DecisionFacts(roles=["r"] * 100)}, "facts.roles"),
    ],
)
async def test_reserve_names_the_field_that_is_wrong(
    start: StartWorld, tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    world = await start(**with_cedar(tmp_path, ALL))
    own = from_rpc(await refusal(world.reserve(**changes)))
    assert (own.code, getattr(own, "field", "")) == (grpc.StatusCode.INVALID_ARGUMENT.value[0], field)


def example(language: str) -> str:
    """The page's example in a language."""
    section = PAGE.read_text().partition("\n## Decision backends\n")[2].partition("\n## ")[0]
    found = re.search(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found.group(1)


async def test_the_pages_example_of_cedar_does_what_it_says(start: StartWorld, tmp_path: Path) -> None:
    settings = with_cedar(tmp_path, example("cedar"))
    entities = tmp_path / "entities.json"
    entities.write_text(example("json"))
    settings["INFERFLUX_POLICY_CEDAR_ENTITIES"] = str(entities)
    world = await start(roles=("night",), **settings)
    await world.reserve(model="small")
    big = "cedar: forbidden by big-models-are-for-paying-tenants"
    assert said(await refusal(world.reserve(model="big")))[2] == big
    night = "cedar: forbidden by night-jobs-are-never-urgent"
    assert said(await refusal(world.reserve(priority=1)))[2] == night
    admitted = await world.admit()
    acme = {"tenant": "acme", "facts": admitted.facts}
    await world.reserve(model="big", **acme)


async def test_the_pages_example_of_opa_does_what_it_says(
    start: StartWorld, opa: OpaServer, tmp_path: Path
) -> None:
    pytest.importorskip("opa_eval", reason="opa-eval has no wheel for this machine")
    rego = tmp_path / "decision.rego"
    rego.write_text(example("rego"))
    opa.answer = by_rules(rego)
    world = await start(**with_opa(opa))
    await world.reserve()
    refused = said(await refusal(world.reserve(max_tokens=4000)))
    assert refused == (
        "PERMISSION_DENIED",
        "DECISION_DENIED",
        "opa: no rule of this company permits it",
    )
    long = await start(roles=("long-texts",), **with_opa(opa))
    await long.reserve(max_tokens=4000)
