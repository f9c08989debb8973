"""Policy processes over a real valkey-server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
import redis.asyncio
from harness.policy import PolicyProcess

from inferflux.common.servers import ServerProcess
from inferflux.policy import keys


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


@dataclass(frozen=True)
class Running:
    """One policy process, its admin key, and the store under it."""

    policy: PolicyProcess
    admin: str
    redis: redis.asyncio.Redis


@pytest.fixture(scope="session")
def policy_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A valkey-server that only policy's tests write to."""
    server = ServerProcess.valkey(tmp_path_factory.mktemp("policy-valkey"))
    server.start()
    server.wait_ready()
    yield server
    server.stop()


@pytest.fixture(scope="session")
async def running(
    tmp_path_factory: pytest.TempPathFactory, policy_valkey: ServerProcess
) -> AsyncIterator[Running]:
    """A policy process that many tests share: none of them may stop it or what is under it."""
    admin = keys.generate()
    directory = tmp_path_factory.mktemp("policy")
    policy = PolicyProcess(directory, policy_valkey.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=admin)
    policy.start()
    await policy.wait_ready()
    client = redis.asyncio.Redis.from_url(policy_valkey.url)
    yield Running(policy, admin, client)
    await client.aclose()
    await policy.close()
