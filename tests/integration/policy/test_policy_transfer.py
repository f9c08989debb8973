"""Export and import: between two policy services, by whom, and what the audit trail has of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from harness.audit import lines_in
from harness.policy import PolicyProcess, bearer, refusal, until

from inferflux.common.contract.errors import Aborted, InvalidArgument, PermissionDenied, from_rpc
from inferflux.v1 import guardrails_pb2, policy_pb2

from .conftest import StartPolicy
from .storages import Place

Document = policy_pb2.PolicyDocument


@dataclass(frozen=True)
class Admin:
    """Calls one policy process."""

    policy: PolicyProcess
    key: str

    async def call(self, method: str, request: Any, *, key: str = "", request_id: str = "") -> Any:
        metadata = (*bearer(key or self.key), *((("x-request-id", request_id),) if request_id else ()))
        return await getattr(self.policy.stranger, method)(request, metadata=metadata, timeout=20)

    async def exported(self, *, with_hashes: bool = False) -> Document:
        request = policy_pb2.ExportPolicyRequest(with_hashes=with_hashes)
        return (await self.call("ExportPolicy", request)).document  # type: ignore[no-any-return]

    async def imported(
        self, document: Document, *, request_id: str = "", key: str = "", **flags: bool
    ) -> policy_pb2.ImportPolicyResponse:
        request = policy_pb2.ImportPolicyRequest(document=document, **flags)
        return await self.call("ImportPolicy", request, key=key, request_id=request_id)  # type: ignore[no-any-return]

    async def set_role(self, name: str, *scopes: str, **fields: Any) -> None:
        role = policy_pb2.Role(name=name, scopes=scopes, **fields)
        await self.call("SetRole", policy_pb2.SetRoleRequest(role=role))

    async def block(self, tenant: str, *texts: str) -> None:
        blocked = [guardrails_pb2.BlockedText(text=text) for text in texts]
        rules = guardrails_pb2.GuardrailRules(blocked=blocked)
        given = guardrails_pb2.Guardrails(tenant=tenant, rules=rules)
        await self.call("SetGuardrails", guardrails_pb2.SetGuardrailsRequest(guardrails=given))


def of(document: Document) -> dict[str, Any]:
    """What a document sets, without times and versions."""
    found = MessageToDict(document, preserving_proto_field_name=True)
    del found["exported_at"]
    for items in ("roles", "rate_limits", "guardrails", "api_keys"):
        found[items] = sorted(found.get(items, []), key=str)
        for item in found[items]:
            item.pop("version", None)
    return found


@pytest.fixture
async def admins(serve_policy: StartPolicy, place: Place) -> tuple[Admin, Admin]:
    """Two policy services with a first key each: one over the storage, and one over Redis."""
    made = []
    other = f"{place.redis_url.rpartition('/')[0]}/1"
    for i, (url, variables) in enumerate([(place.redis_url, place.variables), (other, {})]):
        key = f"ifx_{str(i) * 43}"
        policy = await serve_policy(url, wait=True, INFERFLUX_POLICY_BOOTSTRAP_KEY=key, **variables)
        made.append(Admin(policy, key))
    return made[0], made[1]


over_redis = pytest.mark.parametrize("place", ["redis"], indirect=True)


async def fill(admin: Admin) -> str:
    """Something of each kind; returns the secret of a key that was rotated."""
    await admin.set_role("support", "inference", models=["demo*"], description="the help desk")
    await admin.policy.limit(admin.key, "tenant:acme", requests_per_minute=600)
    await admin.policy.limit(admin.key, "key:*", concurrent_requests=8)
    await admin.block("acme", "forbidden", "verboten")
    made = await admin.policy.create_key(
        admin.key, roles=["support"], models=["demo", "b*"], worker_pools=["gold"], max_priority=9
    )
    rotate = policy_pb2.RotateApiKeyRequest(key_id=made.api_key.key_id)
    secret: str = (await admin.call("RotateApiKey", rotate)).secret
    await admin.policy.create_key(admin.key, tenant="other", cache_scope="x", deterministic=True)
    return secret


@pytest.mark.parametrize("goes_back", [False, True], ids=["from", "to"])
async def test_what_is_exported_is_imported_elsewhere(
    admins: tuple[Admin, Admin], *, goes_back: bool
) -> None:
    first, second = reversed(admins) if goes_back else admins
    secret = await fill(first)
    document = await first.exported(with_hashes=True)
    would = await second.imported(document, dry_run=True)
    assert len(would.changes) == 7
    assert {change.action for change in would.changes} == {"create"}
    assert len((await second.exported()).api_keys) == 1, "a dry run has changed something"

    assert (await second.imported(document)).changes == would.changes
    both = of(await second.exported(with_hashes=True))
    both["api_keys"] = [key for key in both["api_keys"] if key["secret_sha256"] in str(document)]
    assert both == of(document)
    admitted = await second.policy.admit(secret)
    assert (admitted.tenant, list(admitted.models), admitted.max_priority) == ("acme", ["demo", "b*"], 9)
    check = guardrails_pb2.CheckGuardrailsRequest(tenant="acme", text="it is verboten")
    assert (await second.call("CheckGuardrails", check)).HasField("finding")

    again = await second.imported(document)
    assert (list(again.changes), again.unchanged) == ([], 7)


@over_redis
async def test_an_export_has_no_secret_unless_hashes_are_asked_for(admins: tuple[Admin, Admin]) -> None:
    first, second = admins
    await fill(first)
    document = await first.exported()
    assert not any(key.secret_sha256 for key in document.api_keys)
    error = from_rpc(await refusal(second.imported(document)))
    assert isinstance(error, InvalidArgument)
    assert error.field.endswith("secret_sha256")
    assert not (await second.exported()).roles, "what is refused has left something behind"
    assert (await first.imported(document)).unchanged == 7


async def test_a_document_is_edited_and_imported_where_it_came_from(admins: tuple[Admin, Admin]) -> None:
    admin, _ = admins
    secret = await fill(admin)
    document = await admin.exported()
    (key,) = (key for key in document.api_keys if key.roles)
    key.max_priority = 3
    document.roles[0].scopes.append("models")
    document.roles.add(name="fresh", scopes=["models"])
    key.roles.append("fresh")
    made = await admin.imported(document)
    assert [(c.kind, c.action, list(c.fields)) for c in made.changes] == [
        ("role", "update", ["scopes"]),
        ("role", "create", []),
        ("api_key", "update", ["roles", "max_priority"]),
    ]
    admitted = await admin.policy.admit(secret, "models")
    assert admitted.max_priority == 3


async def test_what_was_changed_since_the_export_is_not_overwritten(admins: tuple[Admin, Admin]) -> None:
    admin, _ = admins
    await fill(admin)
    document = await admin.exported()
    await admin.set_role("support", "models")
    await admin.policy.limit(admin.key, "tenant:acme", requests_per_minute=1)
    document.rate_limits[1].requests_per_minute = 700
    for _ in range(2):
        error = from_rpc(await refusal(admin.imported(document)))
        assert isinstance(error, Aborted)
        assert error.reason == "VERSION_MISMATCH"
    assert (await admin.exported()).roles[0].scopes == ["models"]
    assert len((await admin.imported(document, ignore_versions=True)).changes) == 2
    assert (await admin.exported()).roles[0].scopes == ["inference"]


@over_redis
async def test_nothing_is_changed_where_one_field_is_wrong(admins: tuple[Admin, Admin]) -> None:
    admin, _ = admins
    await fill(admin)
    document = await admin.exported()
    document.roles[0].description = "changed"
    document.api_keys[0].cache_scope = "not a scope!"
    error = from_rpc(await refusal(admin.imported(document)))
    assert isinstance(error, InvalidArgument)
    assert error.field == "document.api_keys[0].cache_scope"
    assert (await admin.exported()).roles[0].description == "the help desk"


@over_redis
async def test_an_import_reaches_no_further_than_its_key(admins: tuple[Admin, Admin]) -> None:
    admin, _ = admins
    await fill(admin)
    manager = (await admin.policy.create_key(admin.key, scopes=("policy",))).secret
    document = await admin.exported()
    raised = Document()
    raised.CopyFrom(document)
    raised.roles[0].scopes.append("admin")
    error = from_rpc(await refusal(admin.imported(raised, key=manager)))
    assert isinstance(error, PermissionDenied)
    assert error.reason == "BEYOND_OWN_SCOPES"
    lowered = Document(format=1, api_keys=document.api_keys)
    for key in lowered.api_keys:
        key.name = "taken over"
    assert isinstance(from_rpc(await refusal(admin.imported(lowered, key=manager))), PermissionDenied)
    limits = Document(format=1, rate_limits=document.rate_limits)
    limits.rate_limits[0].requests_per_day = 9
    assert len((await admin.imported(limits, key=manager)).changes) == 1
    hashes = policy_pb2.ExportPolicyRequest(with_hashes=True)
    error = from_rpc(await refusal(admin.call("ExportPolicy", hashes, key=manager)))
    assert isinstance(error, PermissionDenied)


@over_redis
async def test_each_change_has_its_audit_line(admins: tuple[Admin, Admin], tmp_path: Path) -> None:
    first, second = admins
    await fill(first)
    document = await first.exported(with_hashes=True)
    await second.imported(document, request_id="whole-import")

    async def is_written() -> bool:
        return len(lines_in(tmp_path / "audit", "whole-import")) == 8

    await until(is_written)
    *changes, call = lines_in(tmp_path / "audit", "whole-import")
    assert {line["event"] for line in changes} == {"change"}
    assert [(line["kind"], line["action"]) for line in changes][:3] == [
        ("role", "create"),
        ("rate_limit", "create"),
        ("rate_limit", "create"),
    ]
    assert {line["key_id"] for line in changes} == {call["key_id"]}
    assert (call["event"], call["n_changes"], call["dry_run"]) == ("call", 7, False)
    text = str([*changes, call])
    assert not [key for key in document.api_keys if key.secret_sha256 in text]
