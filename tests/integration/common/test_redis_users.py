"""What valkey-server lets each user do, and that it refuses clients without a password."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
import redis.exceptions
from harness.servers import ServerProcess

from inferflux.cli.stack.servers import LOOPBACK, free_port, valkey_command
from inferflux.common.prefixes.salt import SharedSalt
from inferflux.common.redis import store
from inferflux.common.servers import redis_users

PASSWORDS = {user: f"password-of-{user}" for user in redis_users.USERS}
SALT = "inferflux:{prefixes}:salt"
BLOCKS = "inferflux:{prefixes}:blocks:w:1"
ANSWER = "inferflux:{answers}:answer:1"
KEY = "inferflux:{keys}:key:1"
# Key -> who may read it, who may write it.
KEYS = {
    SALT: ({"policy", "gateway", "scheduler", "worker"}, {"policy", "gateway", "scheduler", "worker"}),
    BLOCKS: ({"policy", "scheduler", "worker"}, {"policy", "worker"}),
    ANSWER: ({"policy", "gateway"}, {"policy", "gateway"}),
    KEY: ({"policy"}, {"policy"}),
    "another:program": (set(), set()),
}
DANGEROUS = [
    ["FLUSHALL"],
    ["KEYS", "*"],
    ["CONFIG", "GET", "*"],
    ["CONFIG", "SET", "dir", "/tmp"],  # noqa: S108
    ["ACL", "LIST"],
    ["ACL", "SETUSER", "default", "on", "nopass"],
    ["SHUTDOWN", "NOSAVE"],
    ["MONITOR"],
    ["DEBUG", "SLEEP", "0"],
    ["MODULE", "LIST"],
    ["REPLICAOF", "127.0.0.1", "1"],
    ["SAVE"],
    ["CLIENT", "KILL", "TYPE", "normal"],
]
# What tells of keys or scripts of other users, or takes them away.
OF_OTHERS = [
    ["SCAN", "0"],
    ["RANDOMKEY"],
    ["DBSIZE"],
    ["MEMORY", "STATS"],
    ["CLIENT", "TRACKING", "ON", "BCAST"],
    ["PUBSUB", "CHANNELS"],
    ["FUNCTION", "LIST"],
    ["FUNCTION", "FLUSH"],
    ["FUNCTION", "LOAD", "#!lua name=f\nserver.register_function('f', function() return 1 end)"],
    ["FCALL", "f", "0"],
    ["SCRIPT", "FLUSH"],
    ["SCRIPT", "KILL"],
    ["EVAL", "return redis.call('SCAN', '0')", "0"],
    ["EVAL", "return redis.call('RANDOMKEY')", "0"],
]
SERVICES = [user for user in redis_users.USERS if user not in (redis_users.OPERATOR, redis_users.HEALTH)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory: Path = tmp_path_factory.mktemp("guarded-valkey")
    port = free_port()
    command = valkey_command(port, directory, users=redis_users.acl(PASSWORDS))
    made = ServerProcess(command, port=port, name="valkey-server", log_path=directory / "log")
    made.start()
    try:
        made.wait_ready()
        yield made
    finally:
        made.kill()


def client(server: ServerProcess, user: str, password: str = "") -> redis.asyncio.Redis:
    return store.connect(f"redis://{user}:{password or PASSWORDS[user]}@{LOOPBACK}:{server.port}/0")


async def every_command(server: ServerProcess) -> list[str]:
    async with client(server, redis_users.OPERATOR) as connection:
        names: Any = await run(connection, "COMMAND LIST")
    return sorted(name.decode() for name in names if b"|" not in name)


async def test_every_command_is_refused_without_a_password(server: ServerProcess) -> None:
    commands = await every_command(server)
    assert len(commands) > 200
    reader, writer = await asyncio.open_connection(LOOPBACK, server.port)
    try:
        # With the others a connection says who it is, or ends.
        for command in set(commands) - {"auth", "hello", "quit", "reset"}:
            writer.write(f"{command}\r\n".encode())
            async with asyncio.timeout(5):
                assert (await reader.readline()).count(b"NOAUTH"), command
    finally:
        writer.close()


@pytest.mark.parametrize(("user", "password"), [("default", "x"), ("policy", "wrong"), ("unknown", "x")])
async def test_a_wrong_password_is_refused(server: ServerProcess, user: str, password: str) -> None:
    async with client(server, user, password) as connection:
        with pytest.raises(redis.exceptions.AuthenticationError):
            await connection.get(SALT)


@pytest.mark.parametrize("user", SERVICES)
async def test_a_user_reads_and_writes_its_own_keys_alone(server: ServerProcess, user: str) -> None:
    async with client(server, redis_users.OPERATOR) as operator:
        await operator.flushall()
    async with client(server, user) as connection:
        script = connection.register_script("return redis.call('SET', KEYS[1], 'v')")
        for key, (readers, writers) in KEYS.items():
            assert await is_allowed(connection.get(key)) is (user in readers), key
            assert await is_allowed(connection.set(key, "v")) is (user in writers), key
            assert await is_allowed(script(keys=[key])) is (user in writers), key
            assert await is_allowed(connection.delete(key)) is (
                user in writers and not (user == "scheduler" and key == SALT)
            ), key


@pytest.mark.parametrize("user", SERVICES)
async def test_no_service_may_change_the_server(server: ServerProcess, user: str) -> None:
    async with client(server, user) as connection:
        for command in DANGEROUS:
            assert not await is_allowed(run(connection, *command)), command


async def test_policy_may_wait_for_replicas(server: ServerProcess) -> None:
    async with client(server, redis_users.POLICY) as connection:
        assert await run(connection, "WAIT", "0", "1") == 0


@pytest.mark.parametrize("user", SERVICES)
async def test_no_service_learns_of_keys_and_scripts_of_others(server: ServerProcess, user: str) -> None:
    async with client(server, user) as connection:
        for command in OF_OTHERS:
            may_scan = user == redis_users.GATEWAY and any("SCAN" in word for word in command)
            assert await is_allowed(run(connection, *command)) is may_scan, command


@pytest.mark.parametrize("user", ["gateway", "scheduler", "worker"])
async def test_those_who_hash_prompts_agree_on_the_salt(server: ServerProcess, user: str) -> None:
    async with client(server, redis_users.OPERATOR) as operator:
        await operator.delete(SALT)
    async with client(server, user) as one, client(server, "worker") as other:
        first, second = SharedSalt(one), SharedSalt(other)
        await first.refresh()
        await second.refresh()
        assert first.value == second.value


async def test_the_user_of_health_checks_asks_for_health_alone(server: ServerProcess) -> None:
    async with client(server, redis_users.HEALTH) as connection:
        assert await connection.ping()
        for command in [["GET", KEY], ["SET", SALT, "v"], ["SCAN", "0"], ["DBSIZE"], *DANGEROUS]:
            assert not await is_allowed(run(connection, *command)), command


def test_the_configuration_holds_digests_and_no_password() -> None:
    text = "\n".join(redis_users.acl(PASSWORDS))
    assert not any(password in text for password in PASSWORDS.values())
    assert text.startswith("user default off")


async def is_allowed(call: Any) -> bool:
    try:
        await call
    except redis.exceptions.NoPermissionError:
        return False
    except redis.exceptions.ResponseError as error:
        if not any(words in str(error).lower() for words in ("permission", "not allowed")):
            raise
        return False
    return True


async def run(connection: Any, *words: str) -> Any:
    return await connection.execute_command(*words)
