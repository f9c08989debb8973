"""The layout that policy had in Redis before its table is taken over whole, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest
import redis.asyncio
from harness.policy import until
from harness.redis_cluster import ClusterServers
from harness.redis_sentinel import SentinelServers
from harness.servers import ServerProcess

from inferflux.common.contract.errors import InvalidArgument, Unavailable
from inferflux.common.redis import store
from inferflux.policy.decide import keys
from inferflux.policy.decide.guardrails.store import Name, Rules, Summary
from inferflux.policy.decide.keys import ApiKeyRecord
from inferflux.policy.decide.limits.rules import RateLimit
from inferflux.policy.decide.roles import BUILTIN, Role
from inferflux.policy.storage.redis import earlier
from inferflux.policy.storage.redis.earlier import EarlierLayout
from inferflux.policy.storage.sealed import PASSPHRASE, TAKES_CLEAR
from inferflux.policy.storage.table import Row

from .conftest import StartPolicy
from .earlier_layout import Earlier, names_of_earlier
from .storages import PASSPHRASE_OF_TESTS, Opened, Place, opened

TENANT = "a-tenant-of-earlier-times"
SET = Name("acme", "demo")
SUMMARY = Summary(tenant="acme", model="demo", n_blocked=1, version=1_760_000_000_000)
LIMIT = RateLimit("tenant:*", {"tokens_per_day": 10**12}, 3)
ROLE = Role("reader", ("models",), ("demo*",), version=2)


def rules() -> Rules:
    texts = Rules(max_tokens=4, patterns=["a.b" * 100_000])
    texts.blocked.add(text=TENANT)
    return texts


def record_of(secret: str, **fields: Any) -> ApiKeyRecord:
    given = {"tenant": TENANT, "name": "a key", "scopes": ("inference",), "created_unix_ms": 7, **fields}
    return ApiKeyRecord(keys.digest_of(secret), **given)


SECRET = keys.generate()
MANY = [record_of(SECRET), *(record_of(f"k{i}", created_unix_ms=8 + i) for i in range(600))]
IN_TIME = int(time.time() * 1000) + 3_600_000
ROTATED = record_of("before", created_unix_ms=6).rotated(
    keys.digest_of("after"), previous_until_unix_ms=IN_TIME
)
ALL = Earlier([ROTATED, *MANY], [ROLE], [LIMIT], {SET: (SUMMARY, rules())}, ["m"])


async def has_all(each: Opened) -> None:
    """Assert that a storage has everything that the earlier layout had."""
    storage = each.storage
    assert await storage.keys.all_keys() == [ROTATED, *MANY]
    for digest in (keys.digest_of("before"), ROTATED.digest):
        assert await storage.keys.find(digest) == ROTATED
    assert await storage.keys.all_roles() == [*BUILTIN.values(), ROLE]
    assert await storage.keys.is_bootstrapped("m")
    assert await storage.rate_limits.rules() == [LIMIT]
    assert (await storage.guardrails.index()).sets == {SET: SUMMARY}
    assert await storage.guardrails.rules([SET]) == [rules()]


def is_removed_from(client: redis.asyncio.Redis) -> Callable[[], Awaitable[bool]]:
    async def is_removed() -> bool:
        return not await names_of_earlier(client)

    return is_removed


def has_found(each: Opened) -> Callable[[], Awaitable[bool]]:
    async def is_found() -> bool:
        try:
            return await each.storage.keys.find(ROTATED.digest) is not None
        except Unavailable:
            return False

    return is_found


@pytest.fixture
def place(private_valkey: ServerProcess) -> Place:
    return Place("redis", private_valkey.url)


@pytest.fixture
async def client(private_valkey: ServerProcess) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(private_valkey.url) as connected:
        yield connected


@pytest.mark.parametrize("kind", ["server", "cluster"])
async def test_a_start_takes_over_all_of_it_and_removes_it(
    kind: str, private_valkey: ServerProcess, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        url, client = private_valkey.url, redis.asyncio.Redis.from_url(private_valkey.url)
        if kind == "cluster":
            servers = await stack.enter_async_context(ClusterServers(tmp_path / "cluster"))
            url, client = servers.url, cast("redis.asyncio.Redis", servers.client_of_all())
        stack.push_async_callback(client.aclose)
        await ALL.write(client)
        first = await opened(Place("redis", url))
        stack.push_async_callback(first.aclose)
        await first.storage.keys.note_used({ROTATED.key_id: 5})
        await has_all(first)
        assert not await names_of_earlier(client)
        # It is a table like any other from then on.
        newer = (await first.storage.guardrails.put(SET, SUMMARY, rules())).now
        assert newer > SUMMARY.version
        assert await first.storage.keys.revoke(MANY[0].key_id, version=1)
        second = await opened(Place("redis", url))
        stack.push_async_callback(second.aclose)
        assert await second.storage.keys.all_keys() == [ROTATED, *MANY[1:]]
        assert await second.storage.keys.last_used() == {ROTATED.key_id: 5}


async def test_processes_that_start_together_all_have_everything(
    place: Place, client: redis.asyncio.Redis
) -> None:
    await ALL.write(client)
    processes = await asyncio.gather(*(opened(place) for _ in range(6)))
    for each in processes:
        await has_all(each)
        await each.aclose()
    assert not await names_of_earlier(client)


async def test_a_secret_before_a_rotation_ends_with_its_time(
    place: Place, client: redis.asyncio.Redis
) -> None:
    rotated = record_of("b").rotated(
        keys.digest_of("a"), previous_until_unix_ms=int(time.time() * 1000) + 400
    )
    await Earlier([rotated]).write(client)
    each = await opened(place)
    assert await each.storage.keys.find(keys.digest_of("b")) == rotated

    async def is_over() -> bool:
        return await each.storage.keys.find(keys.digest_of("b")) is None

    await until(is_over)
    assert await each.storage.keys.find(rotated.digest) == rotated
    await each.aclose()


async def test_nothing_is_removed_that_could_not_be_written(
    place: Place, client: redis.asyncio.Redis
) -> None:
    await ALL.write(client)
    names = await names_of_earlier(client)
    await client.config_set("maxmemory", 1)  # every write is refused, and no removal
    first = await opened(place)
    with pytest.raises(Unavailable):
        await first.storage.keys.all_keys()
    assert await names_of_earlier(client) == names
    await client.config_set("maxmemory", 0)
    await has_all(first)
    await until(is_removed_from(client))
    await first.aclose()


@pytest.mark.parametrize("is_sealed", [False, True], ids=["clear", "encrypted"])
async def test_after_the_start_no_call_waits_for_a_take_over(
    place: Place, client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch, *, is_sealed: bool
) -> None:
    await ALL.write(client)
    await client.config_set("maxmemory", 1)  # the start cannot take it over
    each = await opened(
        place.with_passphrase(PASSPHRASE_OF_TESTS).taking_clear() if is_sealed else place, timeout_s=1
    )
    await client.config_set("maxmemory", 0)
    may_read, may_remove, reads = asyncio.Event(), asyncio.Event(), 0
    read, remove = EarlierLayout.rows, EarlierLayout.remove

    async def rows_later(self: EarlierLayout) -> dict[Row, str]:
        nonlocal reads
        reads += 1
        await may_read.wait()
        return await read(self)

    async def remove_later(self: EarlierLayout) -> None:
        await may_remove.wait()
        await remove(self)

    monkeypatch.setattr(EarlierLayout, "rows", rows_later)
    monkeypatch.setattr(EarlierLayout, "remove", remove_later)
    for _ in range(2):
        with pytest.raises(Unavailable, match="taken over"):
            await each.storage.keys.find(ROTATED.digest)
    with pytest.raises(Unavailable, match="taken over"):
        await each.storage.check()  # so it is not ready
    assert reads == 1
    may_read.set()
    await until(has_found(each))
    assert reads == 1
    await has_all(each)
    assert await names_of_earlier(client)
    may_remove.set()
    await until(is_removed_from(client))
    await has_all(each)
    await each.aclose()


async def test_a_process_that_is_killed_before_the_removal_leaves_it_to_the_next(
    place: Place, client: redis.asyncio.Redis, start_policy: StartPolicy
) -> None:
    await ALL.write(client)
    names = await names_of_earlier(client)
    await client.acl_setuser("killed", enabled=True, passwords=["+secret"], keys="*", categories=["+@all"])
    await client.acl_setuser("killed", enabled=True, commands=["-del"])
    killed = await start_policy(place.redis_url.replace("://", "://killed:secret@"))
    assert (await killed.admit(SECRET)).tenant == TENANT
    killed.signal(signal.SIGKILL)
    assert await names_of_earlier(client) == names
    each = await opened(place)
    await has_all(each)
    assert not await names_of_earlier(client)
    await each.aclose()


async def test_a_table_that_was_not_made_of_it_does_not_remove_it(
    place: Place, client: redis.asyncio.Redis
) -> None:
    first = await opened(place)
    own = record_of("own")
    await first.storage.keys.add(own)
    await ALL.write(client)
    names = await names_of_earlier(client)
    second = await opened(place)
    for each in (first, second):
        assert await each.storage.keys.all_keys() == [own]
        await each.aclose()
    assert await names_of_earlier(client) == names


async def test_it_stays_until_a_replica_has_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(earlier, "_RETRY_S", 0.1)
    async with SentinelServers(tmp_path) as servers:
        primary = await servers.primary_of("any")
        client = store.connect(servers.url)
        await ALL.write(client)
        names = await names_of_earlier(client)
        replica = servers.replica_of(primary)
        servers.servers[replica].pause()
        each = await opened(Place("redis", servers.url), timeout_s=1)
        await has_all(each)
        assert await names_of_earlier(client) == names
        servers.servers[replica].resume()

        async def is_removed() -> bool:
            await each.storage.check()
            return not await names_of_earlier(client)

        await until(is_removed)
        await has_all(each)
        await each.aclose()
        await client.aclose()


async def test_with_a_passphrase_it_is_refused_unless_a_setting_says_otherwise(
    place: Place, client: redis.asyncio.Redis
) -> None:
    await ALL.write(client)
    names = await names_of_earlier(client)
    sealed = place.with_passphrase(PASSPHRASE_OF_TESTS)
    with pytest.raises(InvalidArgument, match=TAKES_CLEAR):
        await opened(sealed)
    assert await names_of_earlier(client) == names
    each = await opened(sealed.taking_clear())
    await has_all(each)
    await until(is_removed_from(client))
    for name in await client.keys("*"):
        assert TENANT.encode() not in (await client.dump(name) or b"")
    await each.aclose()
    again = await opened(sealed)
    await has_all(again)
    await again.aclose()
    with pytest.raises(InvalidArgument) as caught:
        await opened(place)
    assert caught.value.field == PASSPHRASE
