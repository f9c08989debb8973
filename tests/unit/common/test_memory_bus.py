"""The bus over memory keeps the bus's promises, and can lose one connection of several."""

from __future__ import annotations

import asyncio

import pytest
from harness.bus_contract import JOBS, BusContract, take
from harness.memory_nats import MemoryNats

from inferflux.common.bus import Bus, StreamLimits
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import Unavailable


class MemoryServer:
    def __init__(self) -> None:
        self.nats = MemoryNats()

    async def connect(self, name: str = "test") -> Bus:
        return await self.nats.connect(name)

    def kill(self) -> None:
        self.nats.stop()

    async def start(self) -> None:
        self.nats.start()


class TestMemoryBus(BusContract):
    @pytest.fixture
    def server(self) -> MemoryServer:
        return MemoryServer()


async def test_one_connection_is_cut_and_the_others_go_on() -> None:
    nats = MemoryNats()
    worker, gateway = await nats.connect(), await nats.connect()
    stream = await gateway.open_stream("test.tokens")
    nats.cut(gateway)
    assert (worker.is_connected, gateway.is_connected) == (True, False)
    await worker.publish("test.tokens", b"lost")
    await worker.flush()
    nats.mend(gateway)
    await worker.publish("test.tokens", b"after")
    assert await stream.next(2) == b"after"
    assert stream.dropped
    await worker.close()
    await gateway.close()


async def test_a_connection_counts_once_all_have_been_told_of_it() -> None:
    """Else a gateway looks for workers whose heartbeats it did not get, and says that there are none."""
    nats = MemoryNats()
    bus = await nats.connect()
    seen: list[bool] = []
    bus.on_connect(lambda: seen.append(bus.is_connected))
    nats.cut(bus)
    nats.client_of(bus).is_connected = True  # it subscribes again
    assert not bus.is_connected
    with pytest.raises(Unavailable, match="is lost"):
        await bus.check_connection()
    nats.client_of(bus).is_connected = False
    nats.mend(bus)
    assert seen == [True]
    assert bus.is_connected
    await bus.close()


async def test_deletions_are_healed_together_once_they_have_settled() -> None:
    """A server removes files after it has told of a deletion: what is made too early loses its own."""
    nats = MemoryNats()
    bus = await nats.connect()
    await bus.ensure_streams(StreamLimits())
    n_heals = 0

    async def on_reconnect() -> None:
        nonlocal n_heals
        n_heals += 1

    bus.on_reconnect(on_reconnect)
    for stream in subjects.STREAMS:
        nats.delete_stream(stream)
        await asyncio.sleep(0.02)  # an operator deletes one after the other
    assert await bus.enqueue(JOBS, b"again", msg_id="1")
    async with asyncio.timeout(5):
        while not n_heals:
            await asyncio.sleep(0.01)
    assert n_heals == 1
    await bus.close()


async def test_a_deleted_stream_is_made_again_and_jobs_go_on() -> None:
    nats = MemoryNats()
    bus = await nats.connect()
    await bus.ensure_streams(StreamLimits())
    healed = asyncio.Event()

    async def on_reconnect() -> None:
        healed.set()

    bus.on_reconnect(on_reconnect)
    consumer = await bus.consume_jobs(max_outstanding=8)
    nats.delete_stream(subjects.JOBS_STREAM)
    async with asyncio.timeout(5):
        await healed.wait()
    assert await bus.enqueue(JOBS, b"again", msg_id="1")
    assert [job.data for job in await take(consumer, 1)] == [b"again"]
    await bus.close()
