"""Policy processes over each storage: what one changes, the others hold to."""

from __future__ import annotations

import grpc
import pytest
from harness.policy import PolicyProcess, until
from harness.postgres import Postgres

from inferflux.common.contract.errors import from_rpc
from inferflux.policy.decide import keys
from inferflux.policy.storage.sealed import PASSPHRASE
from inferflux.policy.storage.settings import STORAGE
from inferflux.v1 import policy_pb2

from .conftest import StartPolicy
from .storages import OTHER_PASSPHRASE, Place


async def is_refused(policy: PolicyProcess, secret: str, reason: str) -> bool:
    try:
        await policy.admit(secret)
    except grpc.aio.AioRpcError as error:
        return bool(from_rpc(error).reason == reason)
    return False


async def counted(policy: PolicyProcess, secret: str) -> policy_pb2.AdmitResponse:
    request = policy_pb2.AdmitRequest(credential=secret, scope="inference", request_id="r-1", is_counted=True)
    return await policy.stub.Admit(request, timeout=10)  # type: ignore[no-any-return]


async def is_over_its_limit(policy: PolicyProcess, secret: str) -> bool:
    try:
        await counted(policy, secret)
    except grpc.aio.AioRpcError as error:
        return bool(from_rpc(error).reason == "QUOTA_USED_UP")
    return False


async def is_admitted(policy: PolicyProcess, secret: str) -> bool:
    return not await is_refused(policy, secret, "UNKNOWN_API_KEY")


async def test_what_one_service_changes_the_other_holds_to(place: Place, serve_policy: StartPolicy) -> None:
    admin = keys.generate()
    variables = {**place.variables, "INFERFLUX_POLICY_BOOTSTRAP_KEY": admin}
    first, second = [await serve_policy(place.redis_url, wait=True, **variables) for _ in range(2)]
    made = await first.create_key(admin)
    await until(lambda: is_admitted(second, made.secret))
    await first.limit(admin, "tenant:acme", requests_per_day=1000)
    await second.limit(admin, f"key:{made.api_key.key_id}", requests_per_day=3)

    await until(lambda: is_over_its_limit(first, made.secret))
    assert (await second.used(admin, f"key:{made.api_key.key_id}"))["requests_per_day"] == 3
    await second.revoke(admin, made.api_key.key_id)
    await until(lambda: is_refused(first, made.secret, "UNKNOWN_API_KEY"), timeout_s=5)
    third = await serve_policy(place.redis_url, wait=True, **variables)
    assert await is_refused(third, made.secret, "UNKNOWN_API_KEY")
    assert len(await third.list_keys(admin)) == 1


@pytest.mark.parametrize("place", ["redis-encrypted", "file", "sqlite-encrypted"], indirect=True)
async def test_a_wrong_passphrase_ends_the_start_and_names_the_variable(
    place: Place, start_policy: StartPolicy
) -> None:
    policy = await start_policy(place.redis_url, wait=True, **place.variables)
    assert policy.stop() == 0
    wrong = place.with_passphrase(OTHER_PASSPHRASE)
    other = await start_policy(place.redis_url, wait=False, **wrong.variables)
    assert other.process is not None
    assert other.process.wait(30) == 2
    said = other.log_path.read_text()
    assert PASSPHRASE in said
    assert OTHER_PASSPHRASE not in said
    policy.start()
    await policy.wait_ready()


@pytest.mark.parametrize("place", ["redis"], indirect=True)
async def test_a_storage_that_lacks_a_setting_ends_the_start(place: Place, start_policy: StartPolicy) -> None:
    for storage, missing in (
        ("file", "INFERFLUX_POLICY_STORAGE_PATH"),
        ("sql", "INFERFLUX_POLICY_STORAGE_SQL_URL"),
    ):
        policy = await start_policy(place.redis_url, wait=False, **{STORAGE: storage})
        assert policy.process is not None
        assert policy.process.wait(30) == 2
        assert missing in policy.log_path.read_text()


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
async def test_a_database_that_is_away_has_every_call_refused_until_it_is_back(
    place: Place, start_policy: StartPolicy, postgres: Postgres
) -> None:
    admin = keys.generate()
    policy = await start_policy(
        place.redis_url, wait=True, **place.variables, INFERFLUX_POLICY_BOOTSTRAP_KEY=admin
    )
    await policy.admit(admin)
    postgres.stop()
    try:
        await policy.wait_without_store()
        await until(lambda: is_refused(policy, admin, "STORE_UNAVAILABLE"))
    finally:
        postgres.start()
    await policy.wait_ready()
    await policy.admit(admin)
