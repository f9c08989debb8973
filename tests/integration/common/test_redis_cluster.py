"""The client of a Redis Cluster, against three primaries and, where they matter, replicas."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio
import redis.exceptions
from harness.redis_cluster import ClusterServers
from harness.slot_move import SlotMove
from redis.commands.core import AsyncScript

from inferflux.common.redis import store
from inferflux.common.redis.store import WHOLE_SLOT

pytestmark = pytest.mark.long

KEY = "inferflux:{keys}:moves"
# One of each server: the slots are divided in three.
EACH = ("a", "b", "c")


@pytest.fixture(scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClusterServers]:
    """No test may leave one of them stopped."""
    async with ClusterServers(tmp_path_factory.mktemp("redis-cluster")) as running:
        yield running


@pytest.fixture
async def client(servers: ClusterServers) -> AsyncIterator[redis.asyncio.Redis]:
    connected = store.connect(servers.url)
    await connected.unlink(KEY)
    yield connected
    await connected.aclose()


async def test_each_key_is_with_its_server_and_all_are_found(
    servers: ClusterServers, client: redis.asyncio.Redis
) -> None:
    assert sorted([await servers.primary_of(key) for key in EACH]) == [0, 1, 2]
    for key in EACH:
        await client.set(f"{{{key}}}:found", key)
    names = [name async for name in client.scan_iter(match="*:found")]
    assert sorted(names) == [b"{a}:found", b"{b}:found", b"{c}:found"]
    assert await client.ping()


async def test_a_pipeline_over_all_servers_answers_in_its_order(client: redis.asyncio.Redis) -> None:
    keys = [f"{{{key}}}:{number}" for number in range(20) for key in EACH]
    async with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.set(key, f"of {key}")
        assert await pipeline.execute() == [True] * len(keys)
        for key in keys:
            pipeline.get(key)
        assert await pipeline.execute() == [f"of {key}".encode() for key in keys]


async def test_a_script_is_told_to_servers_that_do_not_know_it(
    servers: ClusterServers, client: redis.asyncio.Redis
) -> None:
    script = client.register_script("return {KEYS[1], ARGV[1]}")
    for index in range(3):
        async with servers.at(index) as one:
            await one.script_flush()
    assert [await script([key], ["x"]) for key in EACH] == [[key.encode(), b"x"] for key in EACH]
    for index in range(3):
        async with servers.at(index) as one:
            await one.script_flush()
    pipeline = client.pipeline(transaction=False)
    for key in EACH:
        await script([key], ["y"], client=pipeline)
    assert await pipeline.execute() == [[key.encode(), b"y"] for key in EACH]


async def test_an_error_in_a_pipeline_is_told_and_the_rest_is_done(client: redis.asyncio.Redis) -> None:
    pipeline = client.pipeline(transaction=False)
    pipeline.set(KEY, "text")
    pipeline.hset(KEY, "field", "value")
    pipeline.set("{a}:after", "done")
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        await pipeline.execute()
    assert await client.get("{a}:after") == b"done"


async def test_while_a_slot_moves_each_key_is_found_where_it_is(
    servers: ClusterServers, client: redis.asyncio.Redis
) -> None:
    source = await servers.primary_of(KEY)
    move = SlotMove(servers, KEY, source=source, target=(source + 1) % 3)
    await client.hset(KEY, "n", "0")
    script = client.register_script("return redis.call('HINCRBY', KEYS[1], 'n', ARGV[1])")
    blind = client.register_script("return redis.call('HINCRBY', ARGV[1], 'n', 100)")
    await move.begin()

    async def count() -> None:
        """While others do: each has to ask for itself where the slot is not at home yet."""
        pipeline = client.pipeline(transaction=False)
        await script([KEY], [1], client=pipeline)
        pipeline.hget("{a}:else", "n")
        await asyncio.gather(script([KEY], [1]), pipeline.execute())

    for step in (None, move.move_all, move.end):
        if step is not None:
            await step()
        before = int((await client.hget(KEY, "n")) or 0)
        await asyncio.gather(*(count() for _ in range(20)))
        assert int((await client.hget(KEY, "n")) or 0) == before + 40
        if step != move.end:
            # A script that finds names itself would work where some of them are not.
            with pytest.raises(redis.exceptions.TryAgainError):
                await blind([KEY, f"inferflux:{{keys}}:{WHOLE_SLOT}"], [KEY])
    await blind([KEY, f"inferflux:{{keys}}:{WHOLE_SLOT}"], [KEY])
    assert await client.hget(KEY, "n") == b"220"
    assert await servers.primary_of(KEY, asked=source) == (source + 1) % 3


async def test_a_slot_that_moves_as_a_whole_refuses_nothing(
    servers: ClusterServers, client: redis.asyncio.Redis
) -> None:
    source = await servers.primary_of(KEY)
    target = (source + 1) % 3
    move = SlotMove(servers, KEY, source=source, target=target)
    script = client.register_script("return redis.call('HINCRBY', ARGV[1], 'n', 1)")
    keys = [KEY, f"inferflux:{{keys}}:{WHOLE_SLOT}"]
    await script(keys, [KEY])
    await move.whole()
    counted = 1
    while await servers.primary_of(KEY, asked=source) == source:
        await asyncio.gather(*(script(keys, [KEY]) for _ in range(10)))
        counted += 10
    assert await script(keys, [KEY]) == counted + 1


async def test_a_server_that_stands_still_holds_up_nothing_of_the_others(
    servers: ClusterServers, client: redis.asyncio.Redis
) -> None:
    for key in EACH:
        await client.set(key, key)
    stopped = await servers.primary_of("a")
    servers.servers[stopped].pause()
    try:
        waiting = [asyncio.ensure_future(client.get("a")) for _ in range(100)]
        await asyncio.sleep(0)
        assert [await client.get(key) for key in ("b", "c")] == [b"b", b"c"]
        # It is told to those alone that lack it.
        assert await client.register_script("return 'new'")(["b"], []) == b"new"
        assert not any(task.done() for task in waiting)
    finally:
        servers.servers[stopped].resume()
    assert await asyncio.gather(*waiting) == [b"a"] * 100


async def test_a_client_that_began_without_servers_finds_them_later(tmp_path: Path) -> None:
    servers = ClusterServers(tmp_path)
    async with contextlib.aclosing(store.connect(servers.url)) as client:
        with pytest.raises(redis.exceptions.ConnectionError, match="no server of the Redis Cluster"):
            await client.get("a")
        async with servers:
            assert await client.get("a") is None


async def test_a_replica_that_takes_over_is_found(tmp_path: Path) -> None:
    async with (
        ClusterServers(tmp_path, n_replicas=1) as servers,
        contextlib.aclosing(store.connect(servers.url)) as client,
    ):
        script = client.register_script("return redis.call('HINCRBY', KEYS[1], 'n', 1)")
        assert await script([KEY]) == 1
        pipeline = client.pipeline(transaction=False)
        await script([KEY], client=pipeline)
        pipeline.execute_command("WAIT", 1, 5000)
        assert await pipeline.execute() == [2, 1]
        lost = await servers.primary_of(KEY)
        servers.servers[lost].kill()
        # Its scripts are not copied.
        assert await _in_the_end(script, [KEY]) >= 3
        # What was the primary is gone, and may come back as a replica.
        assert await store.has_replicas(client, KEY)


async def _in_the_end(script: AsyncScript, keys: list[str]) -> int:
    async with asyncio.timeout(30):
        while True:
            try:
                return int(await script(keys))
            except redis.exceptions.RedisError:
                await asyncio.sleep(0.05)


async def test_without_replicas_none_is_waited_for(client: redis.asyncio.Redis) -> None:
    assert not await store.has_replicas(client, KEY)
