"""Policy processes over a real valkey-server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import pytest
import redis.asyncio
from harness.policy import PolicyInLoop, PolicyProcess
from harness.postgres import Postgres
from harness.redis_cluster import ClusterServers
from harness.servers import ServerProcess

from inferflux.policy.decide import keys
from inferflux.policy.storage.file import PATH
from inferflux.policy.storage.redis.table import ROWS
from inferflux.policy.storage.sealed import PASSPHRASE
from inferflux.policy.storage.settings import SQL_URL, STORAGE
from inferflux.policy.storage.table import KEY, Row

from . import storages


class StartPolicy(Protocol):
    async def __call__(self, redis_url: str, *, wait: bool = True, **variables: str) -> PolicyProcess: ...


@pytest.fixture
async def start_policy(tmp_path: Path) -> AsyncIterator[StartPolicy]:
    """Start policy processes that end with the test."""
    started: list[PolicyProcess] = []

    async def start(redis_url: str, *, wait: bool = True, **variables: str) -> PolicyProcess:
        process = PolicyProcess(tmp_path, redis_url, **variables)
        started.append(process)
        process.start()
        if wait:
            await process.wait_ready()
        return process

    yield start
    for process in started:
        await process.close()


@pytest.fixture
async def serve_policy(tmp_path: Path) -> AsyncIterator[StartPolicy]:
    """Serve policy in the test's own loop, until the test ends."""
    async with AsyncExitStack() as stack:

        async def start(redis_url: str, *, wait: bool = True, **variables: str) -> PolicyProcess:
            # Storages share the loop with the test: they may take their time.
            patient = {"INFERFLUX_POLICY_STORE_TIMEOUT_S": "10", **variables}
            policy = PolicyInLoop(tmp_path, redis_url, **patient)
            policy.start()
            stack.push_async_callback(policy.close)
            if wait:
                await policy.wait_ready()
            return policy

        yield start


@dataclass(frozen=True)
class Running:
    """One policy process, its admin key, and the store under it, with a client of all its keys."""

    policy: PolicyProcess
    admin: str
    redis: redis.asyncio.Redis
    url: str


async def is_kept(running: Running, secret: str) -> bool:
    """Whether Redis has the row of a key."""
    return bool(await running.redis.hexists(ROWS, Row(KEY, keys.digest_of(secret)).text))


@pytest.fixture(scope="session")
def policy_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A valkey-server that only policy's tests write to."""
    server = ServerProcess.valkey(tmp_path_factory.mktemp("policy-valkey"))
    server.start()
    server.wait_ready()
    yield server
    server.stop()


@pytest.fixture(scope="session", params=["server", pytest.param("cluster", marks=pytest.mark.long)])
async def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, policy_valkey: ServerProcess
) -> AsyncIterator[Running]:
    """A policy process that many tests share: none of them may stop it or what is under it."""
    admin = keys.generate()
    directory = tmp_path_factory.mktemp("policy")
    async with AsyncExitStack() as stack:
        url, client = policy_valkey.url, redis.asyncio.Redis.from_url(policy_valkey.url)
        if request.param == "cluster":
            servers = await stack.enter_async_context(ClusterServers(directory / "cluster"))
            url, client = servers.url, cast("redis.asyncio.Redis", servers.client_of_all())
        stack.push_async_callback(client.aclose)
        policy = PolicyProcess(directory, url, INFERFLUX_POLICY_BOOTSTRAP_KEY=admin)
        stack.push_async_callback(policy.close)
        policy.start()
        await policy.wait_ready()
        yield Running(policy, admin, client, url)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server; skips where there is none."""
    server = Postgres()
    server.start()
    yield server
    server.remove()


@pytest.fixture(params=storages.NAMES)
def place(request: pytest.FixtureRequest, tmp_path: Path, private_valkey: ServerProcess) -> storages.Place:
    """An empty storage of each kind."""
    name = str(request.param)
    variables: dict[str, str] = {}
    if name.endswith("-encrypted") or name == "file":
        variables[PASSPHRASE] = storages.PASSPHRASE_OF_TESTS
    if name == "file":
        (tmp_path / "kept").mkdir()
        variables |= {STORAGE: "file", PATH: str(tmp_path / "kept" / "policy")}
    elif name.startswith("sqlite"):
        variables |= {STORAGE: "sql", SQL_URL: f"sqlite:///{tmp_path}/policy.db"}
    elif name == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        variables |= {STORAGE: "sql", SQL_URL: server.empty_database()}
    return storages.Place(name, private_valkey.url, variables)
