"""What the bus promises when nats-server dies, comes back, or stops answering."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from harness.bus_contract import JOBS, TOKENS, take, until
from harness.servers import ServerProcess

from inferflux.common.bus import Bus, StreamLimits
from inferflux.common.contract.errors import Unavailable


@pytest.fixture
async def own_bus(private_nats: ServerProcess) -> AsyncIterator[Bus]:
    bus = await Bus.connect(private_nats.url, name="test")
    await bus.ensure_streams(StreamLimits())
    yield bus
    await bus.close()


async def kill(server: ServerProcess, bus: Bus) -> None:
    server.kill()
    await until(lambda: not bus.is_connected)


async def start(server: ServerProcess) -> None:
    server.start()
    await asyncio.to_thread(server.wait_ready)


async def test_a_server_that_takes_nothing_refuses_instead_of_hanging(
    private_nats: ServerProcess, own_bus: Bus
) -> None:
    stream = await own_bus.open_stream(TOKENS)
    await own_bus.flush()
    private_nats.pause()
    try:
        started = time.monotonic()
        with pytest.raises(Unavailable) as caught:  # noqa: PT012 - the socket's buffers differ
            for _ in range(1000):
                await own_bus.publish(TOKENS, b"x" * 100_000)
                await asyncio.sleep(0)
        assert caught.value.reason == "OUTBOUND_FULL"
        assert time.monotonic() - started < 5
        with pytest.raises(Unavailable):
            await own_bus.flush(0.1)
        await until(lambda: not own_bus.is_connected)  # found dead without a word from the kernel
    finally:
        private_nats.resume()
    await until(lambda: own_bus.is_connected)
    assert stream.dropped
    while stream.next_nowait() is not None:
        pass
    await own_bus.flush(5)
    await own_bus.publish(TOKENS, b"alive")
    async with asyncio.timeout(10):
        while await stream.next(5) != b"alive":
            pass


async def test_a_flush_that_timed_out_leaves_the_connection_whole(
    private_nats: ServerProcess, own_bus: Bus
) -> None:
    lost = False

    async def on_reconnect() -> None:
        nonlocal lost
        lost = True

    own_bus.on_reconnect(on_reconnect)
    private_nats.pause()
    try:
        with pytest.raises(Unavailable) as caught:
            await own_bus.flush(0.1)
    finally:
        private_nats.resume()
    assert caught.value.reason == "FLUSH_TIMEOUT"
    for _ in range(5):  # its late PONG comes in meanwhile
        await own_bus.flush()
    assert not lost


async def test_a_queue_wiped_with_its_server_starts_anew(private_nats: ServerProcess, own_bus: Bus) -> None:
    import shutil

    consumer = await own_bus.consume_jobs(max_outstanding=8)
    assert await own_bus.enqueue(JOBS, b"lost", msg_id="1")
    (held,) = await take(consumer, 1)
    await kill(private_nats, own_bus)
    assert private_nats.log_path is not None
    shutil.rmtree(private_nats.log_path.parent / "jetstream")
    await start(private_nats)
    assert await own_bus.enqueue(JOBS, b"first again", msg_id="1")
    (job,) = await take(consumer, 1)
    assert (job.data, job.sequence) == (b"first again", held.sequence)


async def test_closing_while_away_is_quick(private_nats: ServerProcess) -> None:
    bus = await Bus.connect(private_nats.url, name="test")
    await kill(private_nats, bus)
    await bus.publish(TOKENS, b"unsent")
    started = time.monotonic()
    await bus.close()
    assert time.monotonic() - started < 2
    with pytest.raises(Unavailable):
        await bus.publish(TOKENS, b"x")


async def test_closing_with_a_silent_server_is_quick(private_nats: ServerProcess) -> None:
    bus = await Bus.connect(private_nats.url, name="test")
    private_nats.pause()
    try:
        for _ in range(15):
            await bus.publish(TOKENS, b"x" * 100_000)
        started = time.monotonic()
        await bus.close(drain_s=0.2)
        assert time.monotonic() - started < 2
    finally:
        private_nats.resume()
