"""API keys over gRPC: made, listed, used, revoked."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from harness.policy import bearer, refusal, until

from inferflux.common.calls import grpc_client
from inferflux.common.contract.callers.scopes import Scope
from inferflux.common.contract.errors import InvalidArgument, from_rpc
from inferflux.policy.decide import keys
from inferflux.policy.decide.keys import ApiKeyRecord
from inferflux.policy.storage.redis.table import REVISION
from inferflux.policy.storage.tables.rows import key_row
from inferflux.v1 import policy_pb2

from .conftest import Running, is_kept
from .storages import write_rows


async def test_a_made_key_admits_for_its_scopes_and_no_others(running: Running) -> None:
    made = await running.policy.create_key(running.admin, scopes=("models", "inference"))
    admitted = await running.policy.admit(made.secret, "models")
    assert admitted.tenant == "acme"
    assert admitted.key_id == made.api_key.key_id
    assert list(admitted.scopes) == ["inference", "models"]
    error = await refusal(running.policy.admit(made.secret, "admin"))
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert from_rpc(error).reason == "MISSING_SCOPE"


async def test_a_key_has_the_ceiling_it_was_made_with_or_the_settings(running: Running) -> None:
    granted = await running.policy.create_key(running.admin, max_priority=50)
    plain = await running.policy.create_key(running.admin)
    admin = await running.policy.create_key(running.admin, scopes=("inference", "admin"))
    held = await running.policy.create_key(running.admin, scopes=("inference", "admin"), max_priority=0)
    for made, ceiling in ((granted, 50), (plain, 4), (admin, 100), (held, 0)):
        assert made.api_key.max_priority == ceiling
        assert (await running.policy.admit(made.secret)).max_priority == ceiling
        listed = {k.key_id: k.max_priority for k in await running.policy.list_keys(running.admin)}
        assert listed[made.api_key.key_id] == ceiling


async def test_a_key_shares_cached_prefixes_with_its_tenant_alone_or_with_its_scope(running: Running) -> None:
    plain = await running.policy.create_key(running.admin)
    own = await running.policy.create_key(running.admin, cache_scope="tenant")
    shared = await running.policy.create_key(running.admin, cache_scope="catalogue")
    listed = {k.key_id: k.cache_scope for k in await running.policy.list_keys(running.admin)}
    for made, shown, scope in (
        (plain, "tenant", ""),
        (own, "tenant", ""),
        (shared, "catalogue", "catalogue"),
    ):
        assert made.api_key.cache_scope == listed[made.api_key.key_id] == shown
        assert (await running.policy.admit(made.secret)).cache_scope == scope


async def test_a_key_that_leaves_the_answer_cache_aside_says_so(running: Running) -> None:
    plain = await running.policy.create_key(running.admin)
    skipping = await running.policy.create_key(running.admin, skip_answer_cache=True)
    listed = {k.key_id: k.skip_answer_cache for k in await running.policy.list_keys(running.admin)}
    for made, skips in ((plain, False), (skipping, True)):
        assert made.api_key.skip_answer_cache is listed[made.api_key.key_id] is skips
        assert (await running.policy.admit(made.secret)).skip_answer_cache is skips


async def test_a_deterministic_key_says_so(running: Running) -> None:
    plain = await running.policy.create_key(running.admin)
    same = await running.policy.create_key(running.admin, deterministic=True)
    listed = {k.key_id: k.deterministic for k in await running.policy.list_keys(running.admin)}
    for made, is_same in ((plain, False), (same, True)):
        assert made.api_key.deterministic is listed[made.api_key.key_id] is is_same
        assert (await running.policy.admit(made.secret)).deterministic is is_same


async def test_a_revoked_key_is_refused_by_the_very_next_call(running: Running) -> None:
    for _ in range(20):
        made = await running.policy.create_key(running.admin)
        await running.policy.admit(made.secret)
        await running.policy.revoke(running.admin, made.api_key.key_id)
        error = await refusal(running.policy.admit(made.secret))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert from_rpc(error).reason == "UNKNOWN_API_KEY"


async def test_revoking_leaves_nothing_of_the_key(running: Running) -> None:
    made = await running.policy.create_key(running.admin)
    await running.policy.revoke(running.admin, made.api_key.key_id)
    assert made.api_key.key_id not in {k.key_id for k in await running.policy.list_keys(running.admin)}
    assert not await is_kept(running, made.secret)
    error = await refusal(running.policy.revoke(running.admin, made.api_key.key_id))
    assert error.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("credential", "reason"),
    [
        ("", "NO_CREDENTIAL"),
        ("hunter2", "UNKNOWN_API_KEY"),
        ("ifx_" + "a" * 43, "UNKNOWN_API_KEY"),
        ("ifx_" + "a" * 10_000, "UNKNOWN_API_KEY"),
    ],
)
async def test_no_key_and_a_wrong_key_are_unauthenticated(
    running: Running, credential: str, reason: str
) -> None:
    error = await refusal(running.policy.admit(credential))
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert from_rpc(error).reason == reason


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("scope", {"scope": ""}),
        ("scope", {"scope": "root"}),
        ("request_id", {"request_id": "a b"}),
        ("request_id", {"request_id": ""}),
    ],
)
async def test_admit_names_the_field_that_is_wrong(
    running: Running, field: str, changes: dict[str, Any]
) -> None:
    fields: dict[str, Any] = {"credential": running.admin, "scope": "inference", "request_id": "r-1"}
    error = await refusal(running.policy.stub.Admit(policy_pb2.AdmitRequest(**(fields | changes))))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    raised = from_rpc(error)
    assert isinstance(raised, InvalidArgument)
    assert raised.field == field


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("tenant", {"tenant": ""}),
        ("tenant", {"tenant": "Acme Corp"}),
        ("name", {"name": ""}),
        ("name", {"name": "n" * 129}),
        ("scopes", {"scopes": []}),
        ("scopes[1]", {"scopes": ["inference", "root"]}),
        ("max_priority", {"max_priority": 101}),
        ("max_priority", {"max_priority": -101}),
        ("cache_scope", {"cache_scope": "a b"}),
    ],
)
async def test_a_key_that_cannot_be_made_leaves_nothing_behind(
    running: Running, field: str, changes: dict[str, Any]
) -> None:
    before = (await running.redis.dbsize(), await running.redis.get(REVISION))
    fields: dict[str, Any] = {"tenant": "acme", "name": "ci", "scopes": ["inference"]}
    request = policy_pb2.CreateApiKeyRequest(**(fields | changes))
    error = await refusal(running.policy.stub.CreateApiKey(request, metadata=bearer(running.admin)))
    raised = from_rpc(error)
    assert isinstance(raised, InvalidArgument)
    assert raised.field == field
    assert (await running.redis.dbsize(), await running.redis.get(REVISION)) == before


async def test_keys_are_managed_by_admins_alone(running: Running) -> None:
    plain = await running.policy.create_key(running.admin, scopes=("inference", "models"))
    for secret, code in (
        ("", grpc.StatusCode.UNAUTHENTICATED),
        (keys.generate(), grpc.StatusCode.UNAUTHENTICATED),
        (plain.secret, grpc.StatusCode.PERMISSION_DENIED),
    ):
        for call in (
            running.policy.create_key(secret),
            running.policy.list_keys(secret),
            running.policy.revoke(secret, plain.api_key.key_id),
        ):
            assert (await refusal(call)).code() is code
    await running.policy.admit(plain.secret)


async def test_the_key_may_come_as_x_api_key(running: Running) -> None:
    request = policy_pb2.ListApiKeysRequest()
    answer = await running.policy.stub.ListApiKeys(request, metadata=(("x-api-key", running.admin),))
    assert answer.api_keys


async def test_the_list_says_everything_but_the_secret(running: Running) -> None:
    first = await running.policy.create_key(running.admin, tenant="list-a")
    second = await running.policy.create_key(running.admin, tenant="list-a", scopes=("models",))
    other = await running.policy.create_key(running.admin, tenant="list-b")
    listed = await running.policy.list_keys(running.admin, tenant="list-a")
    assert {k.key_id for k in listed} == {first.api_key.key_id, second.api_key.key_id}
    assert [k.created_at.ToMilliseconds() for k in listed] == sorted(
        k.created_at.ToMilliseconds() for k in listed
    )
    everyone = await running.policy.list_keys(running.admin)
    assert other.api_key in everyone
    assert all(first.secret not in str(k) for k in everyone)


async def test_a_list_is_whole_however_many_keys_there_are(running: Running) -> None:
    made = [ApiKeyRecord(keys.digest_of(f"many-{i}"), "many", "one", (Scope.MODELS,), 7) for i in range(1000)]
    rows = dict(key_row(record) for record in made)

    async def listed() -> set[tuple[str, int]]:
        found = await running.policy.list_keys(running.admin, tenant="many")
        return {(key.key_id, key.created_at.ToMilliseconds()) for key in found}

    async def are_listed(*expected: ApiKeyRecord) -> bool:
        return await listed() == {(record.key_id, 7) for record in expected}

    await write_rows(running.url, rows)
    await until(lambda: are_listed(*made))
    await write_rows(running.url, dict.fromkeys(rows))
    await until(are_listed)


async def test_redis_never_sees_a_key_itself(running: Running) -> None:
    made = await running.policy.create_key(running.admin)
    await running.policy.admit(made.secret)
    assert await is_kept(running, made.secret)
    for name in await running.redis.keys("*"):
        content = await running.redis.dump(name) or b""
        for secret in (made.secret, running.admin):
            assert secret.encode() not in name
            assert secret.encode() not in content


async def test_a_key_id_that_is_none_is_refused_by_name(running: Running) -> None:
    raised = from_rpc(await refusal(running.policy.revoke(running.admin, "*")))
    assert isinstance(raised, InvalidArgument)
    assert raised.field == "key_id"


async def test_the_request_id_comes_back_to_an_administrator(running: Running) -> None:
    """Services name their requests themselves: to them it does not, which makes their calls shorter."""
    metadata = grpc_client.outgoing(api_key=running.admin, request_id="mine-1")
    call = running.policy.stranger.ListApiKeys(policy_pb2.ListApiKeysRequest(), metadata=metadata)
    await call
    assert dict(await call.initial_metadata())["x-request-id"] == "mine-1"
