"""Answers in a real valkey-server: what they take, and which of them go."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import cast

import pytest
from harness.redis_cluster import ClusterServers
from redis.asyncio import Redis

from inferflux.common.redis import store
from inferflux.gateway.answers.store import (
    OVERHEAD_BYTES,
    PREFIX,
    AnswerLimits,
    AnswerStore,
    Cleared,
    clear,
)

# What one answer of the tests takes.
SIZE = 1000
DATA = b"x" * (SIZE - OVERHEAD_BYTES)


def name() -> bytes:
    return uuid.uuid4().bytes * 2


@pytest.fixture(scope="module", params=["server", pytest.param("cluster", marks=pytest.mark.long)])
async def redis_url(
    request: pytest.FixtureRequest, valkey_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    if request.param == "server":
        yield valkey_url
        return
    async with ClusterServers(tmp_path_factory.mktemp("redis-cluster")) as servers:
        yield servers.url


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = store.connect(redis_url)
    async for name in client.scan_iter(f"{PREFIX}*"):
        await client.unlink(name)
    yield client
    await client.aclose()


def answers(
    redis: Redis, *, answers_of_all: int = 100, of_tenant: int = 100, lifetime_s: float = 60
) -> AnswerStore:
    return AnswerStore(redis, AnswerLimits(answers_of_all * SIZE, of_tenant * SIZE, lifetime_s))


async def fill(cache: AnswerStore, tenant: str, n: int) -> list[bytes]:
    names = [name() for _ in range(n)]
    for each in names:
        await cache.keep(each, DATA, tenant=tenant)
    return names


async def there(cache: AnswerStore, names: list[bytes]) -> list[bool]:
    return [await cache.find(each) is not None for each in names]


async def bytes_of(redis: Redis) -> dict[str, int]:
    members = await redis.zrange(f"{PREFIX}bytes", 0, -1, withscores=True)
    return {k.decode(): int(v) for k, v in cast("list[tuple[bytes, float]]", members)}


async def test_what_is_kept_is_found_and_counted(redis: Redis) -> None:
    cache = answers(redis)
    one = name()
    assert await cache.find(one) is None
    kept = await cache.keep(one, DATA, tenant="acme")
    assert (kept.total_bytes, kept.evicted) == (SIZE, 0)
    assert await cache.find(one) == DATA
    await cache.keep(one, DATA + b"more", tenant="acme")  # in its place
    assert await cache.find(one) == DATA + b"more"
    assert await bytes_of(redis) == {"tenant/acme": SIZE + 4, "total": SIZE + 4}


async def test_a_tenant_beyond_its_budget_evicts_its_own_answers_used_least_recently(redis: Redis) -> None:
    cache = answers(redis, of_tenant=3)
    others = await fill(cache, "other", 3)
    own = await fill(cache, "acme", 3)
    assert await cache.find(own[0]) == DATA  # used again
    kept = await cache.keep(name(), DATA, tenant="acme")
    assert kept.evicted == 1
    assert await there(cache, own) == [True, False, True]
    assert await there(cache, others) == [True] * 3


async def test_beyond_the_budget_of_all_the_largest_tenant_loses_answers(redis: Redis) -> None:
    cache = answers(redis, answers_of_all=5)
    small = await fill(cache, "small", 1)
    large = await fill(cache, "large", 4)
    assert (await cache.keep(name(), DATA, tenant="third")).evicted == 1
    assert await there(cache, small) == [True]
    assert sum(await there(cache, large)) == 3
    await fill(cache, "large", 20)
    assert await there(cache, small) == [True]
    assert (await bytes_of(redis))["total"] == 5 * SIZE


async def test_an_answer_lives_for_its_lifetime_after_its_last_use_and_then_counts_no_more(
    redis: Redis,
) -> None:
    one, other = name(), name()
    await answers(redis, lifetime_s=3600).keep(one, DATA, tenant="acme")
    assert 3_500_000 < await redis.pttl(f"{PREFIX}answer:{one.hex()}") <= 3_600_000
    await answers(redis, lifetime_s=0.001).find(one)  # by a gateway that keeps them for a moment
    while await redis.exists(f"{PREFIX}answer:{one.hex()}"):
        pass
    assert await answers(redis).find(one) is None
    await answers(redis).keep(other, DATA, tenant="acme")
    assert await bytes_of(redis) == {"tenant/acme": SIZE, "total": SIZE}


async def test_an_answer_that_another_tenant_of_the_scope_writes_again_is_theirs(redis: Redis) -> None:
    cache = answers(redis)
    one = name()
    await cache.keep(one, DATA, tenant="acme")
    await cache.keep(one, DATA, tenant="other")
    assert await bytes_of(redis) == {"tenant/other": SIZE, "total": SIZE}


async def test_what_is_larger_than_a_budget_has_no_room(redis: Redis) -> None:
    cache = answers(redis, answers_of_all=2, of_tenant=1)
    assert cache.has_room_for(len(DATA))
    assert not cache.has_room_for(len(DATA) + 1)


@pytest.mark.parametrize("lost", ["bytes", "entries", "used", "used:acme"])
async def test_a_store_that_lost_part_of_its_accounts_still_keeps_answers(redis: Redis, lost: str) -> None:
    cache = answers(redis, answers_of_all=3, of_tenant=3)
    await fill(cache, "acme", 3)
    await redis.delete(f"{PREFIX}{lost}")
    names = await fill(cache, "acme", 10)
    assert (await there(cache, names))[-1]
    assert (await bytes_of(redis))["total"] <= 3 * SIZE


async def keep_of(cache: AnswerStore, tenant: str, model: str, n: int) -> list[bytes]:
    names = [name() for _ in range(n)]
    for each in names:
        await cache.keep(each, DATA, tenant=tenant, model=model)
    return names


@pytest.mark.parametrize("spoiled", ["entries", "used", "used:acme", "used:other", "bytes"])
async def test_accounts_of_another_type_are_begun_anew(redis: Redis, spoiled: str) -> None:
    cache = answers(redis, answers_of_all=4, of_tenant=3)
    before = [*await fill(cache, "acme", 2), *await fill(cache, "other", 2)]
    await redis.set(f"{PREFIX}{spoiled}", "garbage")
    assert await there(cache, before) == [True] * 4
    kept = await fill(cache, "acme", 3)
    assert await cache.find(kept[-1]) == DATA
    await redis.set(f"{PREFIX}{spoiled}", "garbage")
    await clear(redis)
    assert await there(cache, [*before, *kept]) == [False] * 7


async def test_an_entry_that_makes_no_sense_harms_no_answer_and_is_cleared(redis: Redis) -> None:
    cache = answers(redis, of_tenant=2)
    spoiled, other = await fill(cache, "acme", 2)
    await redis.hset(f"{PREFIX}entries", spoiled.hex(), b"\xff garbage")
    assert await there(cache, [spoiled, other]) == [True, True]
    assert await cache.find((await fill(cache, "acme", 1))[0]) == DATA
    await redis.hset(f"{PREFIX}entries", other.hex(), "garbage")
    await clear(redis, tenant="another")
    assert await there(cache, [spoiled, other]) == [False, False]


@pytest.mark.parametrize("digits", [13, 30, 400])
async def test_an_entry_whose_size_is_none_does_not_keep_others_from_being_cleared(
    redis: Redis, digits: int
) -> None:
    cache = answers(redis)
    spoiled, other = await fill(cache, "acme", 2)
    await redis.hset(f"{PREFIX}entries", spoiled.hex(), f"{'9' * digits} acme m")
    assert await clear(redis) == Cleared(2, SIZE)
    assert await there(cache, [spoiled, other]) == [False, False]


async def test_clearing_leaves_nothing(redis: Redis) -> None:
    cache = answers(redis, answers_of_all=2000, of_tenant=2000)
    kept = await keep_of(cache, "acme", "m", 1200)  # more than one round trip looks at
    assert await clear(redis) == Cleared(1200, 1200 * SIZE)
    assert not any(await there(cache, kept[::100]))
    assert [key async for key in redis.scan_iter(f"{PREFIX}*")] == []
    assert await clear(redis) == Cleared()


async def test_one_tenants_or_one_models_answers_are_cleared_alone(redis: Redis) -> None:
    cache = answers(redis)
    of = {
        (tenant, model): await keep_of(cache, tenant, model, 2)
        for tenant in ("acme", "globex")
        for model in ("a model: 7b", "m")
    }
    assert await clear(redis, tenant="acme", model="m") == Cleared(2, 2 * SIZE)
    assert await clear(redis, model="a model: 7b") == Cleared(4, 4 * SIZE)
    left = {key: any(await there(cache, names)) for key, names in of.items()}
    assert [key for key, is_there in left.items() if is_there] == [("globex", "m")]
    assert await bytes_of(redis) == {"tenant/globex": 2 * SIZE, "total": 2 * SIZE}
    assert await clear(redis, tenant="globex") == Cleared(2, 2 * SIZE)
    assert await bytes_of(redis) == {}


async def test_answers_of_which_nothing_is_known_are_cleared_too(redis: Redis) -> None:
    """Redis may evict what is known of them, and they would still be found."""
    cache = answers(redis)
    kept = await keep_of(cache, "acme", "m", 3)
    await redis.delete(f"{PREFIX}entries")
    assert all(await there(cache, kept))
    cleared = await clear(redis, tenant="globex")
    assert cleared.answers == 3
    assert cleared.n_bytes > 0
    assert not any(await there(cache, kept))


async def test_an_answer_of_an_earlier_version_goes_with_every_model(redis: Redis) -> None:
    cache = answers(redis)
    (kept,) = await fill(cache, "acme", 1)
    await redis.hset(f"{PREFIX}entries", kept.hex(), f"{SIZE} acme")
    assert await clear(redis, tenant="globex", model="m") == Cleared()
    assert await clear(redis, model="m") == Cleared(1, SIZE)
    assert not any(await there(cache, [kept]))


async def test_a_hit_puts_off_the_expiry_of_an_answer_whose_model_is_known(redis: Redis) -> None:
    cache = answers(redis, of_tenant=2)
    first, second = await keep_of(cache, "acme", "m", 2)
    await cache.find(first)
    await cache.keep(name(), DATA, tenant="acme", model="m")
    assert await there(cache, [first, second]) == [True, False]
