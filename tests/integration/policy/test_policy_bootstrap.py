"""The first admin key, however the store and the processes start."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import grpc
import redis.asyncio
from harness.policy import PolicyProcess, refusal, until
from harness.servers import ServerProcess

from inferflux.common.contract.callers.scopes import Scope
from inferflux.policy.decide import keys

from .conftest import StartPolicy


def shown_keys(*policies: PolicyProcess) -> list[str]:
    """Generated keys on stderr. No line of a log has one."""
    found = [key for p in policies for key in re.findall(r"ifx_[\w-]{43}", p.log_path.read_text())]
    assert "ifx_" not in str([p.log_lines() for p in policies])
    return found


async def test_the_key_of_the_environment_is_an_admin_key_of_the_default_tenant(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    secret = keys.generate()
    policy = await start_policy(private_valkey.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=secret)
    admitted = await policy.admit(secret, "admin")
    assert (admitted.tenant, set(admitted.scopes)) == ("default", set(Scope))
    assert secret not in policy.log_path.read_text()


async def test_starting_again_writes_it_no_second_time(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    secret = keys.generate()
    first = await start_policy(private_valkey.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=secret)
    (before,) = await first.list_keys(secret)
    assert first.stop() == 0
    second = await start_policy(private_valkey.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=secret)
    (after,) = await second.list_keys(secret)
    for each in (before, after):
        each.ClearField("last_used_at")
    assert after == before


async def test_a_revoked_bootstrap_key_stays_revoked(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    secret = keys.generate()
    first = await start_policy(private_valkey.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=secret)
    await first.revoke(secret, keys.key_id_of(keys.digest_of(secret)))
    assert (await refusal(first.admit(secret))).code() is grpc.StatusCode.UNAUTHENTICATED
    assert first.stop() == 0
    second = await start_policy(private_valkey.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=secret)
    assert (await refusal(second.admit(secret))).code() is grpc.StatusCode.UNAUTHENTICATED


async def test_an_empty_store_gets_a_generated_key_that_is_shown_once(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    first = await start_policy(private_valkey.url)
    (secret,) = shown_keys(first)
    assert (await first.admit(secret, "admin")).tenant == "default"
    second = await start_policy(private_valkey.url)
    assert shown_keys(second) == []
    assert len(await second.list_keys(secret)) == 1


async def test_a_generated_key_is_shown_whatever_is_logged(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    policy = await start_policy(private_valkey.url, INFERFLUX_LOG_LEVEL="error")
    (secret,) = shown_keys(policy)
    assert (await policy.admit(secret, "admin")).tenant == "default"


async def test_a_generated_key_is_written_to_a_file_of_its_owner(
    private_valkey: ServerProcess, start_policy: StartPolicy, tmp_path: Path
) -> None:
    path = tmp_path / "first.key"
    policy = await start_policy(private_valkey.url, INFERFLUX_POLICY_FIRST_KEY_PATH=str(path))
    assert shown_keys(policy) == []
    assert (await policy.admit(path.read_text().strip(), "admin")).tenant == "default"
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_generated_key_that_cannot_be_written_is_shown(
    private_valkey: ServerProcess, start_policy: StartPolicy, tmp_path: Path
) -> None:
    path = tmp_path / "missing" / "first.key"
    policy = await start_policy(private_valkey.url, INFERFLUX_POLICY_FIRST_KEY_PATH=str(path))
    (secret,) = shown_keys(policy)
    assert (await policy.admit(secret, "admin")).tenant == "default"


async def test_processes_that_start_together_generate_one_key(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    policies = await asyncio.gather(*(start_policy(private_valkey.url) for _ in range(3)))
    (secret,) = shown_keys(*policies)
    for policy in policies:
        await policy.admit(secret, "admin")


async def test_nothing_is_generated_for_a_store_that_has_keys(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    secret = keys.generate()
    await start_policy(private_valkey.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=secret)
    other = await start_policy(private_valkey.url)
    assert shown_keys(other) == []
    assert len(await other.list_keys(secret)) == 1


async def test_a_store_that_lost_its_data_gets_the_key_back(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    secret = keys.generate()
    policy = await start_policy(private_valkey.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=secret)
    async with redis.asyncio.Redis.from_url(private_valkey.url) as client:
        await client.flushall()

    async def is_admitted() -> bool:
        try:
            return bool(await policy.admit(secret, "admin"))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                raise
            return False

    await until(is_admitted)
