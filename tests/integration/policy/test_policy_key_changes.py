"""Keys that change: updated, rotated, expired, revoked; and what may be done to whose."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from harness.policy import bearer, refusal, until

from inferflux.common.calls import grpc_metadata
from inferflux.common.contract.errors import InvalidArgument, from_rpc
from inferflux.policy.decide import keys
from inferflux.policy.storage.table import KEY, Row
from inferflux.v1 import policy_pb2

from .conftest import Running, is_kept
from .storages import write_rows


def at(unix_s: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMilliseconds(int(unix_s * 1000))
    return stamp


async def update(
    running: Running, key_id: str, *paths: str, secret: str = "", **fields: Any
) -> policy_pb2.ApiKey:
    request = policy_pb2.UpdateApiKeyRequest(
        api_key=policy_pb2.ApiKey(key_id=key_id, **fields), update_mask=FieldMask(paths=paths or list(fields))
    )
    metadata = bearer(secret or running.admin)
    answer = await running.policy.stranger.UpdateApiKey(request, metadata=metadata, timeout=10)
    return answer.api_key


async def rotate(running: Running, key_id: str, *, overlap_s: int = 0) -> policy_pb2.RotateApiKeyResponse:
    request = policy_pb2.RotateApiKeyRequest(key_id=key_id, overlap_s=overlap_s)
    return await running.policy.stranger.RotateApiKey(request, metadata=bearer(running.admin), timeout=10)


async def reason_of(call: Any) -> str:
    return from_rpc(await refusal(call)).reason


async def test_what_is_changed_holds_with_the_next_call(running: Running) -> None:
    made = await running.policy.create_key(running.admin)
    key_id = made.api_key.key_id
    changed = await update(running, key_id, scopes=["models"], max_priority=7, models=["demo*"], name="new")
    assert (changed.name, changed.version, list(changed.models)) == ("new", 2, ["demo*"])
    assert await reason_of(running.policy.admit(made.secret, "inference")) == "MISSING_SCOPE"
    admitted = await running.policy.admit(made.secret, "models")
    assert (admitted.max_priority, list(admitted.models)) == (7, ["demo*"])
    listed = {k.key_id: k for k in await running.policy.list_keys(running.admin)}
    assert (listed[key_id].name, listed[key_id].created_at) == ("new", made.api_key.created_at)


async def test_a_field_that_is_named_and_absent_goes_back_to_its_default(running: Running) -> None:
    made = await running.policy.create_key(
        running.admin, max_priority=50, models=["demo"], expires_at=at(time.time() + 3600)
    )
    changed = await update(running, made.api_key.key_id, "max_priority", "models", "expires_at")
    assert changed.max_priority == 4
    assert not changed.models
    assert not changed.HasField("expires_at")


async def test_who_is_held_to_models_cannot_give_keys_that_list_others(running: Running) -> None:
    made = await running.policy.create_key(running.admin, scopes=("policy", "models"), models=["small*"])
    await running.policy.create_key(made.secret, scopes=("models",), models=["small-1"])
    for models in ([], ["*"], ["big"], ["small-1", "big"], ["s*"]):
        call = running.policy.create_key(made.secret, scopes=("models",), models=models)
        assert await reason_of(call) == "BEYOND_OWN_SCOPES", models
    own = update(running, made.api_key.key_id, "models", secret=made.secret)
    assert await reason_of(own) == "BEYOND_OWN_SCOPES"


async def test_a_key_is_held_to_worker_pools_and_cannot_give_others(running: Running) -> None:
    made = await running.policy.create_key(
        running.admin, scopes=("policy", "inference"), worker_pools=["gold", "silver", "gold"]
    )
    assert list((await running.policy.admit(made.secret)).worker_pools) == ["gold", "silver"]
    await running.policy.create_key(made.secret, worker_pools=["silver"])
    assert await reason_of(running.policy.create_key(made.secret)) == "BEYOND_OWN_SCOPES"
    changed = await update(running, made.api_key.key_id, worker_pools=["gold"])
    assert list(changed.worker_pools) == ["gold"]
    await update(running, made.api_key.key_id, "worker_pools")
    assert not (await running.policy.admit(made.secret)).worker_pools


@pytest.mark.parametrize(
    ("field", "paths", "fields"),
    [
        ("update_mask", [], {}),
        ("update_mask.paths[1]", ["name", "tenant"], {"name": "x"}),
        ("api_key.name", ["name"], {"name": ""}),
        ("api_key.scopes[0]", ["scopes"], {"scopes": ["root"]}),
        ("api_key.scopes", ["scopes"], {}),
        ("api_key.roles[0]", ["roles"], {"roles": ["no-such-role"]}),
        ("api_key.models[0]", ["models"], {"models": ["a*b"]}),
        ("api_key.worker_pools[0]", ["worker_pools"], {"worker_pools": ["a b"]}),
        ("api_key.max_priority", ["max_priority"], {"max_priority": 101}),
        ("api_key.expires_at", ["expires_at"], {"expires_at": at(1)}),
        ("api_key.cache_scope", ["cache_scope"], {"cache_scope": "a b"}),
    ],
)
async def test_a_change_that_is_wrong_is_refused_by_name_and_changes_nothing(
    running: Running, field: str, paths: list[str], fields: dict[str, Any]
) -> None:
    made = await running.policy.create_key(running.admin)
    request = policy_pb2.UpdateApiKeyRequest(
        api_key=policy_pb2.ApiKey(key_id=made.api_key.key_id, **fields), update_mask=FieldMask(paths=paths)
    )
    call = running.policy.stranger.UpdateApiKey(request, metadata=bearer(running.admin), timeout=10)
    raised = from_rpc(await refusal(call))
    assert isinstance(raised, InvalidArgument)
    assert raised.field == field
    listed = {k.key_id: k for k in await running.policy.list_keys(running.admin)}
    assert listed[made.api_key.key_id] == made.api_key


async def test_of_two_who_change_one_version_the_second_is_refused(running: Running) -> None:
    made = await running.policy.create_key(running.admin)
    key_id = made.api_key.key_id
    await update(running, key_id, "name", name="first", version=1)
    error = await refusal(update(running, key_id, "name", name="second", version=1))
    assert error.code() is grpc.StatusCode.ABORTED
    assert from_rpc(error).reason == "VERSION_MISMATCH"
    many = await asyncio.gather(
        *(update(running, key_id, "name", name=f"n{i}", version=2) for i in range(10)), return_exceptions=True
    )
    assert sum(isinstance(answer, policy_pb2.ApiKey) for answer in many) == 1


async def test_after_a_rotation_both_secrets_are_valid_for_the_overlap(running: Running) -> None:
    made = await running.policy.create_key(running.admin, max_priority=9)
    rotated = await rotate(running, made.api_key.key_id, overlap_s=1)
    assert rotated.api_key.key_id == made.api_key.key_id
    assert rotated.api_key.HasField("previous_secret_until")
    for secret in (made.secret, rotated.secret):
        admitted = await running.policy.admit(secret)
        assert (admitted.key_id, admitted.max_priority) == (made.api_key.key_id, 9)

    async def is_over() -> bool:
        try:
            await running.policy.admit(made.secret)
        except grpc.aio.AioRpcError as error:
            return from_rpc(error).reason == "UNKNOWN_API_KEY"
        return False

    await until(is_over)
    await running.policy.admit(rotated.secret)


async def test_without_an_overlap_the_old_secret_ends_at_once(running: Running) -> None:
    made = await running.policy.create_key(running.admin)
    rotated = await rotate(running, made.api_key.key_id)
    assert await reason_of(running.policy.admit(made.secret)) == "UNKNOWN_API_KEY"
    await running.policy.admit(rotated.secret)


async def test_there_are_never_more_than_two_secrets(running: Running) -> None:
    first = await running.policy.create_key(running.admin)
    second = await rotate(running, first.api_key.key_id, overlap_s=3600)
    third = await rotate(running, first.api_key.key_id, overlap_s=3600)
    assert await reason_of(running.policy.admit(first.secret)) == "UNKNOWN_API_KEY"
    for secret in (second.secret, third.secret):
        await running.policy.admit(secret)


async def test_a_change_counts_for_both_secrets_and_so_does_a_revocation(running: Running) -> None:
    made = await running.policy.create_key(running.admin)
    key_id = made.api_key.key_id
    rotated = await rotate(running, key_id, overlap_s=3600)
    await update(running, key_id, "max_priority", max_priority=-3)
    for secret in (made.secret, rotated.secret):
        assert (await running.policy.admit(secret)).max_priority == -3
    await running.policy.revoke(running.admin, key_id)
    for secret in (made.secret, rotated.secret):
        assert await reason_of(running.policy.admit(secret)) == "UNKNOWN_API_KEY"
        assert not await is_kept(running, secret)


@pytest.mark.parametrize("overlap_s", [90 * 86_400 + 1])
async def test_an_overlap_is_bounded(running: Running, overlap_s: int) -> None:
    made = await running.policy.create_key(running.admin)
    raised = from_rpc(await refusal(rotate(running, made.api_key.key_id, overlap_s=overlap_s)))
    assert isinstance(raised, InvalidArgument)
    assert raised.field == "overlap_s"


async def test_a_key_expires(running: Running) -> None:
    made = await running.policy.create_key(running.admin, expires_at=at(time.time() + 1))
    await running.policy.admit(made.secret)

    async def has_expired() -> bool:
        try:
            await running.policy.admit(made.secret)
        except grpc.aio.AioRpcError as error:
            refused = from_rpc(error)
            assert refused.headers[grpc_metadata.KEY_ID] == made.api_key.key_id
            return (error.code().name, refused.reason) == ("UNAUTHENTICATED", "API_KEY_EXPIRED")
        return False

    await until(has_expired)


async def test_the_list_says_when_a_key_was_last_used(running: Running) -> None:
    made = await running.policy.create_key(running.admin, tenant="last-used")
    (before,) = await running.policy.list_keys(running.admin, tenant="last-used")
    assert not before.HasField("last_used_at")
    began_ms = int(time.time() * 1000)
    await running.policy.admit(made.secret)
    (after,) = await running.policy.list_keys(running.admin, tenant="last-used")
    assert began_ms <= after.last_used_at.ToMilliseconds() <= time.time() * 1000
    await running.policy.revoke(running.admin, made.api_key.key_id)
    assert not await running.redis.hexists("inferflux:{keys}:last_used", made.api_key.key_id)


async def test_the_list_comes_in_pages(running: Running) -> None:
    made = [await running.policy.create_key(running.admin, tenant="pages") for _ in range(5)]
    ids: list[str] = []
    token = ""
    while True:
        request = policy_pb2.ListApiKeysRequest(tenant="pages", page_size=2, page_token=token)
        page = await running.policy.stranger.ListApiKeys(request, metadata=bearer(running.admin), timeout=10)
        assert 1 <= len(page.api_keys) <= 2
        ids += [key.key_id for key in page.api_keys]
        if len(ids) == 2:  # where to go on is still known when a key is gone
            await running.policy.revoke(running.admin, ids[-1])
        token = page.next_page_token
        if not token:
            break
    assert sorted(ids) == sorted(each.api_key.key_id for each in made)


@pytest.mark.parametrize("token", ["x", "12", "12.key", "-1.key_0123456789abcdef"])
async def test_a_page_token_that_is_none_is_refused_by_name(running: Running, token: str) -> None:
    request = policy_pb2.ListApiKeysRequest(page_token=token)
    call = running.policy.stranger.ListApiKeys(request, metadata=bearer(running.admin), timeout=10)
    raised = from_rpc(await refusal(call))
    assert isinstance(raised, InvalidArgument)
    assert raised.field == "page_token"


async def test_roles_are_made_used_changed_and_deleted(running: Running) -> None:
    policy, admin = running.policy.stranger, bearer(running.admin)
    role = policy_pb2.Role(name="reader", scopes=["models"], description="reads")
    answer = await policy.SetRole(policy_pb2.SetRoleRequest(role=role), metadata=admin, timeout=10)
    assert answer.role.version == 1
    made = await running.policy.create_key(running.admin, scopes=(), roles=["reader"])
    await running.policy.admit(made.secret, "models")
    role = policy_pb2.Role(name="reader", scopes=["inference"], models=["demo"], version=1)
    await policy.SetRole(policy_pb2.SetRoleRequest(role=role), metadata=admin, timeout=10)
    assert await reason_of(running.policy.admit(made.secret, "models")) == "MISSING_SCOPE"
    assert list((await running.policy.admit(made.secret)).models) == ["demo"]
    stale = policy.SetRole(policy_pb2.SetRoleRequest(role=role), metadata=admin, timeout=10)
    assert await reason_of(stale) == "VERSION_MISMATCH"
    listed = (await policy.ListRoles(policy_pb2.ListRolesRequest(), metadata=admin, timeout=10)).roles
    found = [(r.version, r.is_builtin, list(r.scopes)) for r in listed if r.name == "reader"]
    assert found == [(2, False, ["inference"])]
    await policy.DeleteRole(policy_pb2.DeleteRoleRequest(name="reader"), metadata=admin, timeout=10)
    assert await reason_of(running.policy.admit(made.secret)) == "MISSING_SCOPE"
    again = policy.DeleteRole(policy_pb2.DeleteRoleRequest(name="reader"), metadata=admin, timeout=10)
    assert await reason_of(again) == "UNKNOWN_ROLE"


async def test_a_role_that_every_inferflux_has_gives_its_scopes_and_stays(running: Running) -> None:
    made = await running.policy.create_key(running.admin, scopes=(), roles=["operator"])
    for scope in ("models", "cluster", "status"):
        await running.policy.admit(made.secret, scope)
    assert await reason_of(running.policy.admit(made.secret, "policy")) == "MISSING_SCOPE"
    role = policy_pb2.Role(name="operator", scopes=["admin"])
    call = running.policy.stranger.SetRole(
        policy_pb2.SetRoleRequest(role=role), metadata=bearer(running.admin), timeout=10
    )
    raised = from_rpc(await refusal(call))
    assert isinstance(raised, InvalidArgument)
    assert raised.field == "role.name"


async def test_who_manages_keys_cannot_get_beyond_its_own_scopes(running: Running) -> None:
    manager = (await running.policy.create_key(running.admin, scopes=("policy", "inference"))).secret
    admins = await running.policy.create_key(running.admin, scopes=("admin",))
    users = await running.policy.create_key(manager, scopes=("inference",))
    await update(running, users.api_key.key_id, "name", name="renamed", secret=manager)
    await running.policy.revoke(manager, users.api_key.key_id)
    ours = await running.policy.create_key(manager, scopes=("inference",))
    role = policy_pb2.SetRoleRequest(role=policy_pb2.Role(name="mine", scopes=["admin"]))
    rotation = policy_pb2.RotateApiKeyRequest(key_id=admins.api_key.key_id)
    stranger, metadata = running.policy.stranger, bearer(manager)
    for call in (
        running.policy.create_key(manager, scopes=("admin",)),
        running.policy.create_key(manager, scopes=(), roles=["operator"]),
        update(running, ours.api_key.key_id, scopes=["admin"], secret=manager),
        update(running, admins.api_key.key_id, "name", name="mine", secret=manager),
        stranger.RotateApiKey(rotation, metadata=metadata, timeout=10),
        running.policy.revoke(manager, admins.api_key.key_id),
        stranger.SetRole(role, metadata=metadata, timeout=10),
        running.policy.create_key(manager, scopes=("inference",), max_priority=5),
    ):
        assert await reason_of(call) == "BEYOND_OWN_SCOPES"
    await running.policy.admit(admins.secret, "admin")


async def test_who_is_held_to_models_cannot_give_others(running: Running) -> None:
    made = await running.policy.create_key(running.admin, scopes=("policy", "inference"), models=["demo*"])
    manager, metadata = made.secret, bearer(made.secret)
    ours = await running.policy.create_key(manager, scopes=("inference",), models=["demo-2"])
    role = policy_pb2.Role(name="every-model", scopes=["inference"])
    set_role = running.policy.stranger.SetRole(
        policy_pb2.SetRoleRequest(role=role), metadata=metadata, timeout=10
    )
    for call in (
        running.policy.create_key(manager, scopes=("inference",)),
        update(running, ours.api_key.key_id, "models", secret=manager),
        update(running, made.api_key.key_id, "models", secret=manager),
        set_role,
    ):
        assert await reason_of(call) == "BEYOND_OWN_SCOPES"


async def is_admitted(running: Running, secret: str) -> bool:
    try:
        await running.policy.admit(secret)
    except grpc.aio.AioRpcError as error:
        return from_rpc(error).reason != "UNKNOWN_API_KEY"
    return True


async def test_a_key_of_an_earlier_version_goes_on_working(running: Running) -> None:
    """As versions before roles, expiry and rotation stored it."""
    secret = keys.generate()
    digest = keys.digest_of(secret)
    fields = {"tenant": "elder", "name": "old", "scopes": "inference models", "created_at": "7"}
    key_id = keys.key_id_of(digest)
    await write_rows(running.url, {Row(KEY, digest): json.dumps(fields | {"key_id": key_id})})
    await until(lambda: is_admitted(running, secret))
    admitted = await running.policy.admit(secret, "models")
    assert (admitted.tenant, admitted.max_priority, list(admitted.models)) == ("elder", 4, [])
    (listed,) = await running.policy.list_keys(running.admin, tenant="elder")
    assert (listed.version, list(listed.scopes)) == (1, ["inference", "models"])
    assert (await update(running, key_id, "name", name="newer", version=1)).version == 2
    rotated = await rotate(running, key_id, overlap_s=60)
    for each in (secret, rotated.secret):
        assert (await running.policy.admit(each)).key_id == key_id


async def test_a_rotation_names_the_version_it_was_made_from(running: Running) -> None:
    made = await running.policy.create_key(running.admin)
    stub, metadata = running.policy.stranger, bearer(running.admin)
    first = policy_pb2.RotateApiKeyRequest(key_id=made.api_key.key_id, version=1)
    assert (await stub.RotateApiKey(first, metadata=metadata, timeout=10)).api_key.version == 2
    again = stub.RotateApiKey(first, metadata=metadata, timeout=10)
    assert await reason_of(again) == "VERSION_MISMATCH"


async def test_what_is_removed_has_the_version_that_was_named(running: Running) -> None:
    stub, metadata = running.policy.stranger, bearer(running.admin)
    made = await running.policy.create_key(running.admin)
    await update(running, made.api_key.key_id, "name", name="newer")
    for _ in range(2):
        role = policy_pb2.Role(name="removed", scopes=["models"])
        await stub.SetRole(policy_pb2.SetRoleRequest(role=role), metadata=metadata, timeout=10)
        await running.policy.limit(running.admin, "tenant:removed", requests_per_day=5)
    for method, request, named in (
        ("RevokeApiKey", policy_pb2.RevokeApiKeyRequest, {"key_id": made.api_key.key_id}),
        ("DeleteRole", policy_pb2.DeleteRoleRequest, {"name": "removed"}),
        ("DeleteRateLimit", policy_pb2.DeleteRateLimitRequest, {"subject": "tenant:removed"}),
    ):
        call = getattr(stub, method)
        for version in (1, 3, 2**64 - 1):
            error = await refusal(call(request(**named, version=version), metadata=metadata, timeout=10))
            assert (error.code().name, from_rpc(error).reason) == ("ABORTED", "VERSION_MISMATCH")
        await call(request(**named, version=2), metadata=metadata, timeout=10)
        gone = await refusal(call(request(**named, version=2), metadata=metadata, timeout=10))
        assert gone.code().name == "NOT_FOUND"


async def test_a_revocation_without_a_version_wins_over_changes_that_come_meanwhile(running: Running) -> None:
    for _ in range(5):
        made = await running.policy.create_key(running.admin)
        key_id = made.api_key.key_id
        changes = (update(running, key_id, "name", name=f"n{i}") for i in range(8))
        revoked, *_ = await asyncio.gather(
            running.policy.revoke(running.admin, key_id), *changes, return_exceptions=True
        )
        assert revoked is None
        assert await reason_of(running.policy.admit(made.secret)) == "UNKNOWN_API_KEY"
