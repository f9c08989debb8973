"""What the bus promises when its streams are deleted under it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import nats
import pytest
from harness.servers import ServerProcess
from harness.small_disk import MountError, SmallDisk
from nats.aio.client import Client as NatsClient
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from inferflux.cli.stack import store
from inferflux.cli.stack.servers import NATS_MAX_FILE_STORE, free_port, nats_command
from inferflux.common.bus import Bus, StreamLimits, streams
from inferflux.common.bus.link import STORE_UNAVAILABLE
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import NotFound, Unavailable
from inferflux.common.contract.subjects import STREAMS

JOBS = subjects.jobs("m")
WAIT_S = 20.0
# This many acknowledgements do not fit into a page of memory that the disk has given out already.
_JOBS_ON_A_PAGE = 300


@pytest.fixture
async def own_bus(private_nats: ServerProcess) -> AsyncIterator[Bus]:
    bus = await Bus.connect(private_nats.url, name="test")
    await bus.ensure_streams(StreamLimits())
    yield bus
    await bus.close()


@pytest.fixture
async def client(private_nats: ServerProcess) -> AsyncIterator[NatsClient]:
    """An operator's own."""
    client = await nats.connect(private_nats.url)
    yield client
    await client.close()


@pytest.fixture
def jetstream(client: NatsClient) -> JetStreamContext:
    return client.jetstream()


async def exists(jetstream: JetStreamContext, stream: str) -> bool:
    try:
        await jetstream.stream_info(stream)
    except NotFoundError:
        return False
    return True


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", STREAMS)
async def test_a_stream_deleted_while_running_is_made_again_and_every_process_knows(
    private_nats: ServerProcess, own_bus: Bus, jetstream: JetStreamContext, stream: str
) -> None:
    """Only one of them makes it again; all have something to put into it."""
    other = await Bus.connect(private_nats.url, name="other")
    await other.ensure_streams(StreamLimits())
    told = [asyncio.Event(), asyncio.Event()]
    for bus, event in zip((own_bus, other), told, strict=True):

        async def on_reconnect(event: asyncio.Event = event) -> None:
            event.set()

        bus.on_reconnect(on_reconnect)
    await jetstream.delete_stream(stream)
    await until(lambda: exists(jetstream, stream))
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(event.wait() for event in told))
    await other.close()


async def test_a_consumer_goes_on_when_its_stream_was_deleted(
    own_bus: Bus, jetstream: JetStreamContext
) -> None:
    consumer = await own_bus.consume_jobs(max_outstanding=8)
    assert await own_bus.enqueue(JOBS, b"held", msg_id="1")
    async with asyncio.timeout(WAIT_S):
        held = await anext(consumer)
    await jetstream.delete_stream(subjects.JOBS_STREAM)
    # Without a stream no answer comes; this waits until there is one.
    assert await own_bus.enqueue(JOBS, b"new", msg_id="2")
    await held.ack()
    async with asyncio.timeout(WAIT_S):
        job = await anext(consumer)
    assert (job.data, job.sequence) == (b"new", 1)
    await job.ack()
    await consumer.close()


async def test_a_consumer_deleted_while_running_is_made_again(
    own_bus: Bus, jetstream: JetStreamContext
) -> None:
    consumer = await own_bus.consume_jobs(max_outstanding=8)
    await jetstream.delete_consumer(subjects.JOBS_STREAM, subjects.SCHEDULER_CONSUMER)
    assert await own_bus.enqueue(JOBS, b"new", msg_id="1")
    async with asyncio.timeout(WAIT_S):
        job = await anext(consumer)
    assert job.data == b"new"
    await job.ack()
    await consumer.close()


async def test_streams_that_cannot_be_written_again_are_a_write_problem_until_they_are(
    own_bus: Bus, jetstream: JetStreamContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise Unavailable("no space left on device", reason=STORE_UNAVAILABLE)

    async def is_noted() -> bool:
        return "no space" in own_bus.write_problem

    async def is_over() -> bool:
        return not own_bus.write_problem

    with monkeypatch.context() as patch:
        patch.setattr(streams, "ensure_streams", refuse)
        await jetstream.delete_stream(subjects.JOBS_STREAM)
        await until(is_noted)
        with pytest.raises(Unavailable):
            own_bus.check_queue()
    await until(is_over)
    assert await exists(jetstream, subjects.JOBS_STREAM)


async def test_healing_goes_on_after_an_unexpected_error(
    own_bus: Bus, jetstream: JetStreamContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = asyncio.Event()

    async def fail(*_: object) -> None:
        failed.set()
        raise KeyError("created")

    with monkeypatch.context() as patch:
        patch.setattr(streams, "ensure_streams", fail)
        await jetstream.delete_stream(subjects.TOKENS_STREAM)
        async with asyncio.timeout(WAIT_S):
            await failed.wait()
    await until(lambda: exists(jetstream, subjects.TOKENS_STREAM))


async def test_a_files_description_that_is_garbage_counts_as_no_file(
    own_bus: Bus, jetstream: JetStreamContext
) -> None:
    bucket, name = subjects.TOKENIZERS_BUCKET, "digest"
    subject = f"$O.{bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"
    for garbage in (b"[" * 200_000, b"[" * 500, b"[]", b'{"digest": 1}', b"\xff"):
        await jetstream.publish(subject, garbage)
        with pytest.raises(NotFound):
            await own_bus.get_object(name)
    await own_bus.put_object(name, b"file")
    assert await own_bus.get_object(name) == b"file"


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    with contextlib.ExitStack() as mounts:
        try:
            yield mounts.enter_context(SmallDisk.mounted())
        except MountError as error:
            pytest.skip(f"{error}: only root can mount a disk of its own")


async def test_an_acknowledgement_that_cannot_be_written_shows_in_the_servers_health(disk: SmallDisk) -> None:
    """No job is published to such a queue, so nats-server itself would never notice."""
    port, monitor_port = free_port(), free_port()
    server = ServerProcess(
        nats_command(port, disk.path, monitor_port=monitor_port), port=port, name="nats-server"
    )
    server.start()
    try:
        server.wait_ready()
        bus = await Bus.connect(server.url, name="test", watches_writes=True)
        await bus.ensure_streams(StreamLimits())
        consumer = await bus.consume_jobs(max_outstanding=_JOBS_ON_A_PAGE)
        for number in range(_JOBS_ON_A_PAGE):
            assert await bus.enqueue(JOBS, b"x" * 100, msg_id=str(number))
        held = [await anext(consumer) for _ in range(_JOBS_ON_A_PAGE)]
        disk.fill()
        for job in held:
            await job.ack()

        async def is_noted() -> bool:
            return "no space left" in bus.write_problem

        async def shows_in_health() -> bool:
            return "no space left" in await asyncio.to_thread(store.write_error, monitor_port)

        await until(is_noted)
        await until(shows_in_health)
        await bus.close()
    finally:
        server.kill()


async def test_a_store_without_room_says_unavailable_and_not_that_we_are_wrong(tmp_path: Path) -> None:
    port = free_port()
    command = nats_command(port, tmp_path)
    config = tmp_path / "nats.conf"
    config.write_text(config.read_text().replace(NATS_MAX_FILE_STORE, "1MB"))
    server = ServerProcess(command, port=port, name="nats-server")
    server.start()
    try:
        server.wait_ready()
        bus = await Bus.connect(server.url, name="test")
        await bus.ensure_streams(StreamLimits())
        with pytest.raises(Unavailable) as refused:
            await asyncio.gather(*(bus.enqueue(JOBS, b"x" * 200_000, msg_id=str(i)) for i in range(20)))
        assert refused.value.reason == "STORE_UNAVAILABLE"
        await bus.close()
    finally:
        server.kill()
