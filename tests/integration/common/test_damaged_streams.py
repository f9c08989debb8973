"""What is left of the work queue when its files are damaged or were not written: of one server, of three."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from harness.bus_contract import JOBS
from harness.nats_cluster import SERVERS, NatsCluster
from harness.power_cut import PowerCut
from harness.servers import ServerProcess

from inferflux.common.bus import Bus, StreamLimits
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import DeadlineExceeded, InferFluxError, Unavailable

pytestmark = [pytest.mark.timeout(240), pytest.mark.long]
_JOBS = 100
_PATIENCE_S = 90.0
_LOOKS = 40


def flip(file: Path) -> None:
    """Change some bytes in the middle."""
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 8] = bytes(byte ^ 0xFF for byte in data[middle : middle + 8])
    file.write_bytes(bytes(data))


def cut_off(file: Path) -> None:
    """Lose the second half."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def folder_of(store: Path, stream: str = subjects.JOBS_STREAM) -> Path:
    """Where a server keeps a stream."""
    return next(store.rglob(f"streams/{stream}"))


def block_of(store: Path) -> Path:
    """The file of the work queue's messages."""
    return folder_of(store) / "msgs" / "1.blk"


async def enqueue(bus: Bus, numbers: range) -> None:
    for number in numbers:
        assert await bus.enqueue(JOBS, b"%d" % number, msg_id=f"job-{number}")


async def enqueue_patiently(bus: Bus, number: int) -> None:
    """As a client does, while the servers elect."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            try:
                await bus.enqueue(JOBS, b"%d" % number, msg_id=f"job-{number}")
            except Unavailable:
                continue
            return


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Return once what is asked of JetStream is so, however often it does not answer meanwhile."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            try:
                if await condition():
                    return
            except InferFluxError:
                pass
            await asyncio.sleep(0.2)


async def take_all(bus: Bus, last: int) -> list[int]:
    """The jobs that a scheduler is given, up to and with `last`."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            try:
                consumer = await bus.consume_jobs(max_outstanding=1000, ack_wait_s=5)
                break
            except (Unavailable, DeadlineExceeded):
                await asyncio.sleep(0.2)
        numbers: list[int] = []
        async for job in consumer:
            numbers.append(int(job.data))
            await job.ack()
            if numbers[-1] == last:
                break
    await consumer.close()
    return numbers


# A server alone


@pytest.fixture
async def alone(private_nats: ServerProcess) -> AsyncIterator[Bus]:
    bus = await Bus.connect(private_nats.url, name="test", watches_writes=True)
    await bus.ensure_streams(StreamLimits())
    yield bus
    await bus.close()


def store_of(server: ServerProcess) -> Path:
    return Path(server.command[-1]).parent


@pytest.mark.parametrize("damage", [flip, cut_off])
async def test_a_server_alone_loses_what_is_behind_the_damage_and_goes_on(
    private_nats: ServerProcess, alone: Bus, damage: Callable[[Path], None]
) -> None:
    await enqueue(alone, range(_JOBS))
    private_nats.kill()
    damage(block_of(store_of(private_nats)))
    private_nats.start()
    await asyncio.to_thread(private_nats.wait_ready)
    await enqueue(alone, range(_JOBS, _JOBS + 1))
    taken = await take_all(alone, _JOBS)
    kept = len(taken) - 1
    assert 0 < kept < _JOBS
    assert taken == [*range(kept), _JOBS]


@pytest.mark.parametrize("file", ["meta.inf", "meta.sum", "msgs/index.db"])
async def test_a_server_alone_that_has_its_messages_loses_none(
    private_nats: ServerProcess, alone: Bus, file: str
) -> None:
    await enqueue(alone, range(_JOBS))
    private_nats.stop()
    flip(folder_of(store_of(private_nats)) / file)
    private_nats.start()
    await asyncio.to_thread(private_nats.wait_ready)
    await enqueue(alone, range(_JOBS, _JOBS + 1))
    assert await take_all(alone, _JOBS) == list(range(_JOBS + 1))


@pytest.mark.skipif(PowerCut.why_not() != "", reason=f"a power cut cannot be had: {PowerCut.why_not()}")
async def test_a_server_alone_loses_nothing_that_it_acknowledged_in_a_power_cut(
    private_nats: ServerProcess, alone: Bus
) -> None:
    with PowerCut([private_nats.pid], store_of(private_nats)) as power:
        await enqueue(alone, range(_JOBS))
        power.happen()
    private_nats.kill()
    private_nats.start()
    await asyncio.to_thread(private_nats.wait_ready)
    await enqueue(alone, range(_JOBS, _JOBS + 1))
    assert await take_all(alone, _JOBS) == list(range(_JOBS + 1))


# Three servers


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NatsCluster]:
    with NatsCluster(tmp_path / "cluster") as servers:
        yield servers


@pytest.fixture
async def bus(cluster: NatsCluster) -> AsyncIterator[Bus]:
    await cluster.start()
    bus = await Bus.connect(cluster.url(), name="test", watches_writes=True)
    await bus.ensure_streams(StreamLimits())
    yield bus
    await bus.close()


async def is_whole(bus: Bus) -> bool:
    """Whether the work queue has a leader, and the others have all that it has."""
    found = (await bus._link.api(f"STREAM.INFO.{subjects.JOBS_STREAM}"))["cluster"]
    replicas = found.get("replicas", [])
    return bool(found.get("leader")) and [r["current"] for r in replicas] == [True] * (SERVERS - 1)


@pytest.mark.parametrize("damage", [flip, cut_off, Path.unlink])
async def test_a_server_of_three_gets_from_the_others_what_its_damaged_file_has_lost(
    tmp_path: Path, cluster: NatsCluster, bus: Bus, damage: Callable[[Path], None]
) -> None:
    await enqueue(bus, range(_JOBS))
    await until(lambda: is_whole(bus))
    victim = (await cluster.leader(bus, subjects.JOBS_STREAM) + 1) % SERVERS
    cluster.kill(victim)
    damage(block_of(tmp_path / "cluster" / f"nats-{victim}"))
    await cluster.start(victim)
    await until(lambda: is_whole(bus))
    await enqueue(bus, range(_JOBS, _JOBS + 1))
    assert await take_all(bus, _JOBS) == list(range(_JOBS + 1))


async def test_a_server_of_three_that_does_not_start_with_its_files_gets_all_of_them_from_the_others(
    tmp_path: Path, cluster: NatsCluster, bus: Bus
) -> None:
    await enqueue(bus, range(_JOBS))
    await until(lambda: is_whole(bus))
    victim = (await cluster.leader(bus, subjects.JOBS_STREAM) + 1) % SERVERS
    cluster.servers[victim].stop()
    store = tmp_path / "cluster" / f"nats-{victim}"
    for snapshot in store.rglob("snapshots/*"):
        snapshot.write_bytes(b"")
    with pytest.raises(Unavailable, match="snapshot"):
        await cluster.start(victim)
    (store / "jetstream").rename(tmp_path / "aside")
    await cluster.start(victim)
    # Its leader may take it for whole for a moment, as it was before.
    for _ in range(_LOOKS):
        await until(lambda: is_whole(bus))
        await asyncio.sleep(0.2)
    # What it has now is asked of it: another one is gone.
    cluster.kill((victim + 1) % SERVERS)
    await enqueue_patiently(bus, _JOBS)
    assert await take_all(bus, _JOBS) == list(range(_JOBS + 1))


async def test_three_that_are_killed_at_once_lose_nothing(cluster: NatsCluster, bus: Bus) -> None:
    await enqueue(bus, range(_JOBS))
    for index in range(SERVERS):
        cluster.kill(index)
    await cluster.start()
    await until(lambda: is_whole(bus))
    await enqueue(bus, range(_JOBS, _JOBS + 1))
    assert await take_all(bus, _JOBS) == list(range(_JOBS + 1))
