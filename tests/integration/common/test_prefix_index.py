"""The prefix index against a real valkey-server."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from harness.redis_cluster import ClusterServers
from harness.servers import ServerProcess
from redis.asyncio import Redis

from inferflux.common.contract.errors import Unavailable
from inferflux.common.prefixes.hashes import PrefixHasher, packed
from inferflux.common.prefixes.index import (
    BLOCKS_AT_ONCE,
    LIFETIME_S,
    CachedBlock,
    Change,
    Holder,
    Match,
    PrefixIndex,
    Tier,
)
from inferflux.common.prefixes.salt import SALT_BYTES, SharedSalt
from inferflux.common.redis import store

HASHER = PrefixHasher(bytes(32), model_digest="digest", block_tokens=2)


def holder(worker_id: str = "") -> Holder:
    return Holder(worker_id or uuid.uuid4().hex, uuid.uuid4().hex)


def hashes_of(tokens: Sequence[int]) -> list[bytes]:
    return HASHER.of(packed(tokens), "acme")


def all_new(hashes: Sequence[bytes], tier: Tier = Tier.DEVICE) -> Change:
    blocks = [CachedBlock(each, tier, 1000, usable) for usable, each in enumerate(hashes, 1)]
    return Change(None, 1, added=blocks)


@pytest.fixture(scope="module", params=["server", "cluster"])
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
    yield client
    await client.aclose()


@pytest.fixture
def index(redis: Redis) -> PrefixIndex:
    return PrefixIndex(redis)


def key_of(who: Holder) -> str:
    return f"inferflux:{{prefixes}}:blocks:{who.worker_id}:{who.incarnation}"


async def test_each_worker_has_its_own_longest_match(index: PrefixIndex) -> None:
    hashes = hashes_of(range(20))
    none, some, most = holder(), holder(), holder()
    await index.write(some, [all_new(hashes[:3], Tier.HOST)])
    await index.write(most, [all_new(hashes[:9])])
    found = await index.longest([([none, some, most], hashes)])
    assert found == [{some: Match(3, Tier.HOST, 1000, 3), most: Match(9, Tier.DEVICE, 1000, 9)}]


async def test_any_prompt_gets_what_a_plain_search_finds(index: PrefixIndex) -> None:
    """Prompts of few different tokens on several workers, in one round trip."""
    draw = random.Random(7)
    workers = [holder() for _ in range(5)]
    cached: dict[Holder, set[bytes]] = {}
    for worker in workers:
        prompts = [[draw.randrange(2) for _ in range(draw.randrange(60))] for _ in range(6)]
        cached[worker] = {each for prompt in prompts for each in hashes_of(prompt)}
        await index.write(worker, [all_new(sorted(cached[worker]))])
    prompts = [[draw.randrange(2) for _ in range(draw.randrange(60))] for _ in range(300)]
    asked = [(draw.sample(workers, draw.randrange(6)), hashes_of(prompt)) for prompt in prompts]
    found = await index.longest(asked)
    for (among, hashes), matches in zip(asked, found, strict=True):
        plain = {worker: sum(each in cached[worker] for each in hashes) for worker in among}
        assert {worker: match.blocks for worker, match in matches.items()} == {
            worker: blocks for worker, blocks in plain.items() if blocks
        }


async def test_what_goes_is_not_found_any_more(index: PrefixIndex) -> None:
    hashes, worker = hashes_of(range(20)), holder()
    await index.write(worker, [all_new(hashes)])
    assert await index.write(worker, [Change(1, 2, removed=hashes[4:])])
    assert (await index.longest([([worker], hashes)]))[0][worker].blocks == 4


async def test_a_worker_that_starts_again_has_nothing(index: PrefixIndex) -> None:
    hashes, worker = hashes_of(range(20)), holder("w")
    await index.write(worker, [all_new(hashes)])
    assert await index.longest([([holder("w")], hashes)]) == [{}]


async def test_a_part_of_another_version_is_left_alone_and_begun_anew(index: PrefixIndex) -> None:
    hashes, worker = hashes_of(range(20)), holder()
    assert not await index.write(worker, [Change(3, 4, added=[CachedBlock(hashes[0], Tier.DEVICE, 1, 1)])])
    assert await index.longest([([worker], hashes)]) == [{}]
    await index.write(worker, [all_new(hashes)])
    assert not await index.write(worker, [Change(7, 8, removed=hashes)])
    assert (await index.longest([([worker], hashes)]))[0][worker].blocks == 10
    assert await index.write(worker, [all_new(hashes[:2])])
    assert (await index.longest([([worker], hashes)]))[0][worker].blocks == 2


async def test_a_part_expires_unless_it_is_renewed(redis: Redis, index: PrefixIndex) -> None:
    worker = holder()
    await index.write(worker, [all_new(hashes_of(range(4)))])
    await redis.persist(key_of(worker))
    assert await index.write(worker, [Change(1, 2)])
    assert 0 < await redis.pttl(key_of(worker)) <= LIFETIME_S * 1000


async def test_a_worker_that_leaves_leaves_nothing(redis: Redis, index: PrefixIndex) -> None:
    worker = holder()
    await index.write(worker, [all_new(hashes_of(range(4)))])
    await index.forget(worker)
    assert not await redis.exists(key_of(worker))


async def test_the_most_that_one_change_may_hold_is_written(index: PrefixIndex) -> None:
    hashes, worker = hashes_of(range(2 * BLOCKS_AT_ONCE)), holder()
    await index.write(worker, [all_new(hashes)])
    assert (await index.longest([([worker], hashes)]))[0][worker].blocks == BLOCKS_AT_ONCE
    assert await index.write(worker, [Change(1, 2, removed=hashes)])
    assert await index.longest([([worker], hashes)]) == [{}]


async def damage_type(redis: Redis, worker: Holder, last: bytes) -> None:
    await redis.set(key_of(worker), b"not a hash")


async def damage_value(redis: Redis, worker: Holder, last: bytes) -> None:
    await redis.hset(key_of(worker), last, b"?")


async def damage_tier(redis: Redis, worker: Holder, last: bytes) -> None:
    await redis.hset(key_of(worker), last, b"\xff\0\0\0\0")


@pytest.mark.parametrize("damage", [damage_type, damage_value, damage_tier])
async def test_a_damaged_part_counts_as_none_and_is_begun_anew(
    redis: Redis, index: PrefixIndex, damage: Callable[..., object]
) -> None:
    hashes, bad, good = hashes_of(range(20)), holder(), holder()
    for worker in (bad, good):
        await index.write(worker, [all_new(hashes)])
    await damage(redis, bad, hashes[-1])  # type: ignore[misc]
    assert await index.longest([([bad, good], hashes)]) == [{good: Match(10, Tier.DEVICE, 1000, 10)}]
    await index.write(bad, [all_new(hashes)])
    assert (await index.longest([([bad], hashes)]))[0][bad].blocks == 10


async def test_the_index_outlives_a_restart_that_forgets_all(private_valkey: ServerProcess) -> None:
    """A server that comes back empty knows neither scripts nor versions: the worker begins anew."""
    client = store.connect(private_valkey.url)
    index, worker, hashes = PrefixIndex(client), holder(), hashes_of(range(20))
    await index.write(worker, [all_new(hashes)])
    assert await index.longest([([worker], hashes)]) == [{worker: Match(10, Tier.DEVICE, 1000, 10)}]
    await client.flushall()
    await client.script_flush()
    assert await index.longest([([worker], hashes)]) == [{}]
    await client.script_flush()
    assert not await index.write(worker, [Change(1, 2)])
    private_valkey.restart()
    assert await index.write(worker, [all_new(hashes)])
    private_valkey.kill()
    with pytest.raises(Unavailable), store.store_errors():
        await index.longest([([worker], hashes)])
    await client.aclose()


async def test_all_processes_agree_on_one_salt(private_valkey: ServerProcess) -> None:
    client = store.connect(private_valkey.url)
    first, second = SharedSalt(client), SharedSalt(client)
    assert first.value != second.value
    assert not await first.refresh()
    assert await second.refresh()
    assert first.value == second.value
    assert len(first.value) == SALT_BYTES
    await client.flushall()
    assert not await second.refresh()  # gives it back
    third = SharedSalt(client)
    assert await third.refresh()
    assert third.value == second.value
    await client.aclose()


async def test_a_damaged_salt_is_written_anew(private_valkey: ServerProcess) -> None:
    client = store.connect(private_valkey.url)
    await client.set("inferflux:{prefixes}:salt", b"short")
    first, second = SharedSalt(client), SharedSalt(client)
    await first.refresh()
    assert await second.refresh()
    assert first.value == second.value
    await client.aclose()
