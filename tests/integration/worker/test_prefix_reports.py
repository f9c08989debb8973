"""What a worker writes of its cache, against a real valkey-server that dies, forgets and comes back."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pytest
from harness.policy import until
from harness.servers import ServerProcess
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from inferflux.common.prefixes.hashes import PrefixHasher, packed
from inferflux.common.prefixes.index import Holder, PrefixIndex
from inferflux.common.prefixes.salt import SharedSalt
from inferflux.common.redis import store
from inferflux.v1 import engine_pb2, generation_pb2
from inferflux.worker.metrics import WorkerMetrics
from inferflux.worker.model.prefix_reports import PrefixReports

SCOPE = "tenant/acme"
make_hasher = partial(PrefixHasher, model_digest="digest", block_tokens=2)


@pytest.fixture
async def redis(private_valkey: ServerProcess) -> AsyncIterator[Redis]:
    client = store.connect(private_valkey.url)
    yield client
    await client.aclose()


class Reader:
    """A scheduler's view of the index."""

    def __init__(self, redis: Redis) -> None:
        self._index, self._salt = PrefixIndex(redis), SharedSalt(redis)

    async def blocks(self, holder: Holder, tokens: Sequence[int]) -> int:
        await self._salt.refresh()
        hashes = make_hasher(self._salt.value).of(packed(tokens), SCOPE)
        matches = (await self._index.longest([([holder], hashes)]))[0]
        return matches[holder].blocks if holder in matches else 0


class Writer:
    """A worker's part, running."""

    def __init__(self, redis: Redis) -> None:
        self.registry = CollectorRegistry()
        self.holder = Holder("w", uuid.uuid4().hex)
        metrics = WorkerMetrics(self.registry).of("m")
        self.cached: dict[int, engine_pb2.CachedPrefix] = {}
        self.reports = PrefixReports(
            redis, self.holder, make_hasher, metrics, report_again=self._report_again
        )

    def report(self, entry: int, tokens: Sequence[int]) -> None:
        tier = generation_pb2.CACHE_TIER_DEVICE
        ids = packed(tokens)
        self.cached[entry] = engine_pb2.CachedPrefix(entry=entry, token_ids=ids, cache_scope=SCOPE, tier=tier)
        self.reports.take_in([self.cached[entry]])

    def _report_again(self) -> None:
        """As the engine does, some time later."""
        asyncio.get_running_loop().call_soon(self.reports.take_in, list(self.cached.values()))

    def count(self, name: str) -> float:
        return self.registry.get_sample_value(f"inferflux_{name}", {"model": "m"}) or 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        task = asyncio.create_task(self.reports.run())
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()


async def until_found(reader: Reader, holder: Holder, tokens: Sequence[int], blocks: int) -> None:
    async def is_found() -> bool:
        return await reader.blocks(holder, tokens) == blocks

    await until(is_found)


async def test_what_the_engine_caches_is_found_and_what_it_evicts_is_not(redis: Redis) -> None:
    reader, writer = Reader(redis), Writer(redis)
    with writer.running():
        writer.report(1, range(10))
        await until_found(reader, writer.holder, range(12), 5)
        assert writer.count("prefix_index_blocks") == 5
        writer.report(1, [])
        await until_found(reader, writer.holder, range(12), 0)
        writer.report(2, range(4))
        await until_found(reader, writer.holder, range(12), 2)
    await writer.reports.leave()
    assert await reader.blocks(writer.holder, range(12)) == 0


async def test_an_engine_that_dies_takes_its_prefixes_along(redis: Redis) -> None:
    reader, writer = Reader(redis), Writer(redis)
    with writer.running():
        writer.report(1, range(10))
        await until_found(reader, writer.holder, range(10), 5)
        writer.reports.clear()
        await until_found(reader, writer.holder, range(10), 0)


async def test_a_server_that_comes_back_empty_gets_everything_again(
    redis: Redis, private_valkey: ServerProcess
) -> None:
    """Its salt as well: what was hashed with it still counts."""
    reader, writer = Reader(redis), Writer(redis)
    with writer.running():
        writer.report(1, range(10))
        await until_found(reader, writer.holder, range(10), 5)
        await redis.flushall()
        await until_found(reader, writer.holder, range(10), 5)
    assert writer.count("prefix_index_rewrites_total") == 1


async def test_what_is_cached_while_the_server_is_dead_is_found_once_it_is_back(
    redis: Redis, private_valkey: ServerProcess
) -> None:
    reader, writer = Reader(redis), Writer(redis)
    with writer.running():
        writer.report(1, range(10))
        await until_found(reader, writer.holder, range(10), 5)
        private_valkey.kill()
        writer.report(1, [])
        writer.report(2, range(50, 60))

        async def has_failed() -> bool:
            return writer.count("prefix_index_write_failures_total") > 0

        await until(has_failed)
        private_valkey.start()
        private_valkey.wait_ready()
        await until_found(reader, writer.holder, range(50, 60), 5)
        assert await reader.blocks(writer.holder, range(10)) == 0


async def test_another_salt_is_taken_over(redis: Redis) -> None:
    """A new process was faster than those that knew the old one."""
    reader, writer = Reader(redis), Writer(redis)
    with writer.running():
        writer.report(1, range(10))
        await until_found(reader, writer.holder, range(10), 5)
        await redis.set("inferflux:{prefixes}:salt", bytes(32))
        await until_found(reader, writer.holder, range(10), 5)


async def test_what_others_have_done_to_the_index_is_mended(redis: Redis) -> None:
    """Values that are none, and blocks that are missing; the version says nothing of it."""
    reader, writer = Reader(redis), Writer(redis)
    with writer.running():
        writer.report(1, range(10))
        await until_found(reader, writer.holder, range(10), 5)
        key = f"inferflux:{{prefixes}}:blocks:w:{writer.holder.incarnation}"
        blocks = [field for field in await redis.hkeys(key) if field != b"version"]
        await redis.hset(key, mapping=dict.fromkeys(blocks[:3], b"garbage"))
        await redis.hdel(key, *blocks[3:])
        await until_found(reader, writer.holder, range(10), 5)
    assert writer.count("prefix_index_rewrites_total") == 0


async def test_a_rewrite_returns_when_the_index_has_what_was_reported_and_nothing_else(redis: Redis) -> None:
    reader, writer = Reader(redis), Writer(redis)
    with writer.running():
        writer.report(1, range(10))
        await until_found(reader, writer.holder, range(10), 5)
        key = f"inferflux:{{prefixes}}:blocks:w:{writer.holder.incarnation}"
        await redis.hset(key, "stale", b"12345")
        writer.report(1, [])
        await writer.reports.rewrite()
        assert await redis.hkeys(key) == [b"version"]


async def test_a_rewrite_does_not_wait_for_a_redis_that_is_away(
    redis: Redis, private_valkey: ServerProcess
) -> None:
    writer = Writer(redis)
    with writer.running():
        private_valkey.kill()
        async with asyncio.timeout(10):
            await writer.reports.rewrite()
