"""Every storage of policy that tests run against."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
import redis.asyncio

from inferflux.common.redis import store
from inferflux.policy.settings import PolicySettings
from inferflux.policy.storage.guarded import StoreGuard
from inferflux.policy.storage.interface import Storage
from inferflux.policy.storage.opening import storage_of
from inferflux.policy.storage.redis.table import RedisTable
from inferflux.policy.storage.sealed import PASSPHRASE, TAKES_CLEAR
from inferflux.policy.storage.table import Edits

PASSPHRASE_OF_TESTS = "a-passphrase-of-tests"
OTHER_PASSPHRASE = "another-passphrase-of-tests"
# Each kind once, in clear or encrypted; the others of a kind with `make test-all`.
NAMES = (
    "redis",
    "file",
    "sqlite-encrypted",
    "postgres",
    pytest.param("redis-encrypted", marks=pytest.mark.long),
    pytest.param("sqlite", marks=pytest.mark.long),
)
_FAST = 1 << 14
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Place:
    """Where a storage keeps what it keeps: any number of policy processes can use it.

    Attributes:
        variables: of a policy process that uses it.
    """

    name: str
    redis_url: str
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_encrypted(self) -> bool:
        return PASSPHRASE in self.variables

    def with_passphrase(self, passphrase: str) -> Place:
        return replace(self, variables={**self.variables, PASSPHRASE: passphrase})

    def taking_clear(self) -> Place:
        return replace(self, variables={**self.variables, TAKES_CLEAR: "true"})


@dataclass(frozen=True)
class Opened:
    """A storage as one policy process has it."""

    storage: Storage
    redis: redis.asyncio.Redis

    async def aclose(self) -> None:
        await self.storage.aclose()
        await self.redis.aclose()


async def write_rows(url: str, rows: Edits) -> None:
    """Write rows of a table in Redis, as another policy process does it."""
    async with store.connect(url) as client:
        table = RedisTable(client, StoreGuard(timeout_s=_TIMEOUT_S))
        revision = (await table.changes(0)).revision
        assert await table.write(rows, expected=revision, revision=revision + 1)


async def opened(place: Place, *, timeout_s: float = _TIMEOUT_S) -> Opened:
    """Raises:
    InvalidArgument: it cannot be used.
    """
    settings = PolicySettings.model_validate(dict(place.variables))
    client = store.connect(place.redis_url)
    storage = storage_of(
        settings,
        client,
        StoreGuard(timeout_s=timeout_s),
        timeout_s=timeout_s,
        now_ms=lambda: int(time.time() * 1000),
        scrypt_cost=_FAST,
    )
    try:
        await storage.open()
    except BaseException:
        await storage.aclose()
        await client.aclose()
        raise
    return Opened(storage, client)
