"""The Redis client against a real valkey-server."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import redis.exceptions
from harness.cuttable import CuttableProxy
from harness.redis_sentinel import OF_SENTINELS, PASSWORD, SentinelServers
from harness.servers import ServerProcess

from inferflux.cli.stack.servers import free_port
from inferflux.common.contract.errors import InvalidArgument, Unavailable
from inferflux.common.redis import store
from inferflux.common.servers.fleet_files import SERVICE


async def test_it_stores_bytes(valkey_url: str) -> None:
    client = store.connect(valkey_url)
    with store.store_errors():
        await client.set("test:bytes", b"\xff\x00")
        assert await client.get("test:bytes") == b"\xff\x00"
    await client.aclose()


async def test_a_store_that_is_away_is_unavailable_soon_and_comes_back_by_itself(
    private_valkey: ServerProcess,
) -> None:
    client = store.connect(private_valkey.url)
    await client.set("key", b"kept")
    private_valkey.kill()
    started = time.monotonic()
    with pytest.raises(Unavailable) as caught, store.store_errors():
        await client.get("key")
    assert caught.value.reason == "STORE_UNAVAILABLE"
    assert str(private_valkey.port) in caught.value.in_full
    assert str(private_valkey.port) not in caught.value.message
    assert time.monotonic() - started < 2
    private_valkey.start()
    private_valkey.wait_ready()
    with store.store_errors():
        assert await client.get("key") == b"kept"  # written to its file
    await client.aclose()


async def test_a_cancellation_at_any_moment_of_a_command_ends_it_and_mixes_up_no_answers(
    valkey_url: str,
) -> None:
    client = store.connect(valkey_url)
    await client.set("test:other", b"other")
    await client.set("test:own", b"own")

    async def ask() -> None:
        while True:
            await client.get("test:other")

    for turns in range(60):
        asking = asyncio.create_task(ask())
        for _ in range(turns):  # of the event loop
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking], timeout=10)
        assert asking.cancelled(), f"went on after {turns} turns"
        assert await client.get("test:own") == b"own"
    await client.aclose()


async def test_a_restart_between_two_commands_goes_unseen(private_valkey: ServerProcess) -> None:
    client = store.connect(private_valkey.url)
    await client.set("key", b"1")
    private_valkey.restart()
    with store.store_errors():
        assert await client.get("key") == b"1"
    await client.aclose()


async def test_a_reset_at_any_moment_after_a_command_goes_unseen(private_valkey: ServerProcess) -> None:
    async with CuttableProxy(f"127.0.0.1:{private_valkey.port}", resets=True) as proxy:
        client = store.connect(f"redis://{proxy.endpoint}/0")
        await client.set("key", b"1")
        for turns in range(12):
            proxy.break_up()
            for _ in range(turns):  # of the event loop: the reset is received after some of them
                await asyncio.sleep(0)
            with store.store_errors():
                assert await client.get("key") == b"1"
        await client.aclose()


async def test_a_silent_store_is_unavailable_in_bounded_time(private_valkey: ServerProcess) -> None:
    client = store.connect(private_valkey.url)
    await client.set("key", b"1")
    private_valkey.pause()
    try:
        started = time.monotonic()
        with pytest.raises(Unavailable), store.store_errors():
            await client.get("key")
        assert time.monotonic() - started < 8
    finally:
        private_valkey.resume()
    await client.aclose()


async def test_a_store_without_a_listener_is_unavailable() -> None:
    client = store.connect(f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(Unavailable), store.store_errors():
        await client.ping()
    await client.aclose()


async def test_a_defect_of_ours_stays_what_it_is(valkey_url: str) -> None:
    client = store.connect(valkey_url)
    await client.set("test:text", "x")
    with pytest.raises(redis.exceptions.ResponseError), store.store_errors():
        await client.lpush("test:text", "y")
    await client.aclose()


def test_a_runtime_error_of_ours_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError), store.store_errors():
        raise RuntimeError("a defect")


@pytest.mark.parametrize("url", ["", "127.0.0.1:6379", "http://127.0.0.1"])
def test_a_url_that_is_none_names_the_variable(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        store.connect(url)
    assert caught.value.field == "INFERFLUX_REDIS_URL"


async def test_a_server_that_the_url_should_not_name_is_told_and_is_no_defect(
    private_valkey: ServerProcess,
) -> None:
    """A database that it does not have; a server where sentinels should be."""
    at = f"127.0.0.1:{private_valkey.port}"
    for url, why in (
        (f"redis://{at}/99", "DB index is out of range"),
        (f"redis+sentinel://{at}/store", "no sentinel answers: unknown command"),
    ):
        client = store.connect(url)
        with pytest.raises(Unavailable) as caught, store.store_errors():
            await client.ping()
        assert why in caught.value.in_full
        await client.aclose()


async def test_why_no_sentinel_tells_the_primary_is_told(tmp_path: Path) -> None:
    async with SentinelServers(tmp_path) as servers:
        for url, why in (
            (servers.url.replace("sentinel_password=", "sentinel_password=x"), "no sentinel answers: "),
            (servers.url.replace(f"/{SERVICE}/", "/other/"), "knows a primary of 'other' that lives"),
            (f"redis://:{OF_SENTINELS}@127.0.0.1:{servers.sentinels[0].port}", "unknown command"),
        ):
            client = store.connect(url)
            with pytest.raises(Unavailable) as caught, store.store_errors():
                await client.exists("key")
            assert why in caught.value.in_full
            assert PASSWORD not in caught.value.in_full
            await client.aclose()


async def test_a_sentinel_that_is_none_is_passed_by(tmp_path: Path, private_valkey: ServerProcess) -> None:
    async with SentinelServers(tmp_path) as servers:
        client = store.connect(servers.url.replace("@", f"@127.0.0.1:{private_valkey.port},", 1))
        await client.set("key", b"1")
        await client.aclose()
