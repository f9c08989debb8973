"""What the bus promises over several nats-servers, of which some die or stand still."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from harness.bus_contract import JOBS, take, until
from harness.nats_cluster import SERVERS, NatsCluster
from harness.servers import ServerProcess

from inferflux.common.bus import Bus, JobConsumer, StreamLimits, healing
from inferflux.common.bus.link import ApiError
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import DeadlineExceeded, Unavailable
from inferflux.common.contract.partitions import WHOLE
from inferflux.common.contract.subjects import STREAMS
from inferflux.common.servers import nats_users

pytestmark = [pytest.mark.timeout(180), pytest.mark.long]
# After a leader was killed, the others take up to 9 s to elect one.
ELECTION_S = 30.0


@pytest.fixture(scope="module")
def servers_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with NatsCluster(tmp_path_factory.mktemp("cluster")) as servers:
        yield servers


@pytest.fixture
async def cluster(servers_of_all: NatsCluster) -> NatsCluster:
    """With all its servers, whatever the test before did to them."""
    await servers_of_all.start()
    return servers_of_all


@pytest.fixture
async def bus(cluster: NatsCluster) -> AsyncIterator[Bus]:
    bus = await Bus.connect(cluster.url(), name="test")
    await bus.ensure_streams(StreamLimits())
    yield bus
    await bus.close()


async def enqueue(bus: Bus, number: int) -> None:
    """As a patient client does."""
    async with asyncio.timeout(2 * ELECTION_S):
        while True:
            try:
                assert await bus.enqueue(JOBS, b"%d" % number, msg_id=f"job-{number}")
            except Unavailable:
                continue
            return


async def consume(bus: Bus, *, ack_wait_s: float = 5) -> JobConsumer:
    """As a scheduler does, which tries again while servers have yet to agree."""
    while True:
        try:
            return await bus.consume_jobs(max_outstanding=100, ack_wait_s=ack_wait_s)
        except (Unavailable, DeadlineExceeded):
            await asyncio.sleep(0.1)


async def test_streams_are_kept_on_three_servers_of_a_cluster_and_on_a_server_alone(
    bus: Bus, private_nats: ServerProcess
) -> None:
    async with asyncio.timeout(4 * ELECTION_S):  # a server that has just started may not count yet
        while [await NatsCluster.replicas(bus, stream) for stream in STREAMS] != [SERVERS] * len(STREAMS):
            await asyncio.sleep(0.2)
    alone = await Bus.connect(private_nats.url, name="alone")
    await alone.ensure_streams(StreamLimits())
    assert [await NatsCluster.replicas(alone, stream) for stream in STREAMS] == [1] * len(STREAMS)
    await alone.close()


async def test_more_replicas_than_servers_are_refused_by_the_settings_name(
    bus: Bus, private_nats: ServerProcess
) -> None:
    alone = await Bus.connect(private_nats.url, name="alone")
    with pytest.raises(Unavailable, match="INFERFLUX_NATS_REPLICAS") as caught:
        await alone.ensure_streams(StreamLimits(replicas=3))
    assert caught.value.reason == "TOO_FEW_SERVERS"
    await alone.close()


async def test_no_job_is_lost_or_doubled_when_servers_are_killed_one_after_the_other(
    cluster: NatsCluster, bus: Bus
) -> None:
    """Each time the one that leads the queue."""
    consumer = await consume(bus)
    number = 0
    for _ in range(2):
        await enqueue(bus, number)
        leader = await cluster.leader(bus, subjects.JOBS_STREAM)
        cluster.kill(leader)
        await asyncio.gather(*(enqueue(bus, number + n) for n in range(1, 5)))
        number += 5
        await cluster.start(leader)
    jobs = await take(consumer, number, ELECTION_S)
    assert sorted(int(job.data) for job in jobs) == list(range(number))
    for job in jobs:
        await job.ack()
    await consumer.close()


async def test_acknowledgements_that_a_killed_server_took_with_it_are_told_again(
    cluster: NatsCluster, bus: Bus
) -> None:
    """Long before JetStream would deliver their jobs again: `ack_wait` is not over in this test."""
    name = f"CONSUMER.INFO.{subjects.JOBS_STREAM}.{subjects.scheduler_consumer(WHOLE)}"
    reader = await Bus.connect(cluster.url(0), name="reader")
    leader = 0
    async with asyncio.timeout(4 * ELECTION_S):
        while leader == 0:  # not the server that the reader itself would lose
            consumer = await consume(reader, ack_wait_s=600)
            leader = int((await reader._link.api(name))["cluster"]["leader"].removeprefix("nats-"))
    for number in range(100, 105):  # ids of other tests are taken
        await enqueue(bus, number)
    jobs = await take(consumer, 5, ELECTION_S)
    cluster.kill(leader)
    for job in jobs:
        await job.ack()
    async with asyncio.timeout(2 * ELECTION_S):
        left = 1
        while left:
            await asyncio.sleep(0.1)
            with contextlib.suppress(Unavailable, DeadlineExceeded, ApiError):
                found = await reader._link.api(f"STREAM.INFO.{subjects.JOBS_STREAM}")
                left = found["state"]["messages"]
    await consumer.close()
    await reader.close()


async def test_a_client_that_was_told_of_one_server_moves_to_another_with_its_password(
    tmp_path: Path,
) -> None:
    with NatsCluster(tmp_path, [nats_users.operator()]) as servers:
        await servers.start()
        bus = await Bus.connect(servers.url(0, user=nats_users.OPERATOR), name="test")
        await until(lambda: len(bus._client._server_pool) == SERVERS)  # type: ignore[attr-defined]
        servers.kill(0)
        await until(lambda: not bus.is_connected)
        await until(lambda: bus.is_connected)
        await bus.flush()
        await bus.close()


async def test_a_server_that_stands_still_is_left_for_another(cluster: NatsCluster) -> None:
    bus = await Bus.connect(cluster.url(0), name="test")
    await until(lambda: len(bus._client._server_pool) == SERVERS)  # type: ignore[attr-defined]
    cluster.servers[0].pause()
    try:
        await until(lambda: not bus.is_connected)
        await until(lambda: bus.is_connected)
        await bus.flush()
    finally:
        cluster.servers[0].resume()
    await bus.close()


async def test_streams_are_kept_on_more_servers_once_there_are_more(tmp_path: Path) -> None:
    with NatsCluster(tmp_path) as servers:
        await servers.start(0, 1)
        bus = await Bus.connect(servers.url(0, 1), name="test")
        await bus.ensure_streams(StreamLimits())
        assert await servers.replicas(bus, subjects.JOBS_STREAM) == 1
        await enqueue(bus, 0)
        await servers.start(2)
        async with asyncio.timeout(2 * ELECTION_S):
            while await servers.replicas(bus, subjects.JOBS_STREAM) < SERVERS:
                await asyncio.sleep(0.1)
            consumer = await consume(bus)
        (job,) = await take(consumer, 1)
        assert job.data == b"0"
        await bus.close()


async def test_processes_are_told_when_another_server_leads_the_stream_of_tokens(
    cluster: NatsCluster, bus: Bus
) -> None:
    """The stream lacks what was published meanwhile: workers put it in."""
    healed = asyncio.Event()

    async def on_reconnect() -> None:
        healed.set()

    leader = await cluster.leader(bus, subjects.TOKENS_STREAM)
    other = await Bus.connect(cluster.url(*(i for i in range(SERVERS) if i != leader)), name="other")
    await other.ensure_streams(StreamLimits())
    other.on_reconnect(on_reconnect)
    healed.clear()
    cluster.kill(leader)
    async with asyncio.timeout(ELECTION_S):
        await healed.wait()
    assert other.is_connected
    await other.close()


async def test_copies_that_a_server_lacks_are_told_of_until_it_has_them(
    cluster: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healing, "_CHECK_INTERVAL_S", 0.5)
    bus = await Bus.connect(cluster.url(0, 1), name="test")
    await bus.ensure_streams(StreamLimits())
    cluster.kill(2)
    async with asyncio.timeout(ELECTION_S):
        while bus._healer.copies_behind != {f"{stream} on nats-2" for stream in STREAMS}:
            await asyncio.sleep(0.1)
    await cluster.start(2)
    async with asyncio.timeout(ELECTION_S):
        while bus._healer.copies_behind:
            await asyncio.sleep(0.1)
    await bus.close()
