"""What the bus promises when nats-server dies, comes back, or stops answering."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from inferflux.common import subjects
from inferflux.common.bus import Bus, Job, JobConsumer, Message, StreamLimits
from inferflux.common.errors import DeadlineExceeded, Unavailable
from inferflux.common.servers import ServerProcess

JOBS = subjects.jobs("m")
TOKENS = subjects.tokens("acme", "r1")


@pytest.fixture
async def own_bus(private_nats: ServerProcess) -> AsyncIterator[Bus]:
    bus = await Bus.connect(private_nats.url, name="test")
    await bus.ensure_streams(StreamLimits())
    yield bus
    await bus.close()


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def take(consumer: JobConsumer, count: int, timeout_s: float = 10.0) -> list[Job]:
    async with asyncio.timeout(timeout_s):
        return [await anext(consumer) for _ in range(count)]


async def kill(server: ServerProcess, bus: Bus) -> None:
    server.kill()
    await until(lambda: not bus.is_connected)


async def start(server: ServerProcess) -> None:
    server.start()
    await asyncio.to_thread(server.wait_ready)


async def reconnect(server: ServerProcess, bus: Bus) -> None:
    """Restart the server and return when the bus has recovered all it promises."""
    recovered = asyncio.Event()

    async def on_reconnect() -> None:
        recovered.set()

    bus.on_reconnect(on_reconnect)
    await kill(server, bus)
    await start(server)
    await asyncio.wait_for(recovered.wait(), 10)


async def test_a_reconnect_callback_that_nats_fails_runs_again(
    private_nats: ServerProcess, own_bus: Bus
) -> None:
    calls: list[str] = []

    async def fail_once() -> None:
        calls.append("first")
        if len(calls) == 1:
            raise Unavailable("NATS did not answer")

    async def follow() -> None:
        calls.append("second")

    own_bus.on_reconnect(fail_once)
    own_bus.on_reconnect(follow)
    await kill(private_nats, own_bus)
    await start(private_nats)
    await until(lambda: "second" in calls)
    assert calls == ["first", "first", "second"]


async def test_the_token_stream_exists_again_before_reconnect_callbacks_run(
    private_nats: ServerProcess, own_bus: Bus
) -> None:
    await own_bus.publish(TOKENS, b"before")
    replayed: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()

    async def republish() -> None:
        await own_bus.publish(TOKENS, b"again")
        messages: list[bytes] = []
        while not messages:
            messages = await own_bus.replay(TOKENS)
        replayed.set_result(messages)

    own_bus.on_reconnect(republish)
    await kill(private_nats, own_bus)
    await start(private_nats)

    assert await asyncio.wait_for(replayed, 10) == [b"again"]


async def test_a_failing_reconnect_callback_does_not_keep_the_next_from_running(
    private_nats: ServerProcess, own_bus: Bus
) -> None:
    async def fail() -> None:
        raise RuntimeError("a defect")

    own_bus.on_reconnect(fail)
    await reconnect(private_nats, own_bus)


async def test_token_subscriptions_go_on_after_a_restart_and_say_that_messages_were_dropped(
    private_nats: ServerProcess, own_bus: Bus
) -> None:
    stream = await own_bus.open_stream(TOKENS)
    await own_bus.publish(TOKENS, b"1")
    assert await stream.next(2) == b"1"
    assert not stream.dropped

    await reconnect(private_nats, own_bus)

    assert stream.dropped
    assert not stream.dropped  # asking clears it
    await own_bus.publish(TOKENS, b"2")
    assert await stream.next(2) == b"2"


async def test_a_reader_waiting_over_a_restart_gets_what_is_published_after_it(
    private_nats: ServerProcess, own_bus: Bus
) -> None:
    stream = await own_bus.open_stream(TOKENS)

    async def read() -> bytes:
        while True:
            try:
                return await stream.next(10)
            except TimeoutError:
                assert stream.dropped  # woken by the loss, not by the clock

    waiting = asyncio.create_task(read())
    await reconnect(private_nats, own_bus)
    await own_bus.publish(TOKENS, b"late")
    assert await waiting == b"late"


async def test_handlers_serve_again_after_a_restart(private_nats: ServerProcess, own_bus: Bus) -> None:
    async def echo(message: Message) -> None:
        await message.respond(message.data)

    await own_bus.serve("test.echo", echo)
    await reconnect(private_nats, own_bus)
    assert await own_bus.request("test.echo", b"hello", timeout_s=2) == b"hello"


async def test_a_subscription_closed_while_away_stays_closed(
    private_nats: ServerProcess, own_bus: Bus
) -> None:
    stream = await own_bus.open_stream(TOKENS)
    await own_bus.flush()
    await kill(private_nats, own_bus)
    stream.close()
    opened_while_away = await own_bus.open_stream(TOKENS)
    await start(private_nats)
    await own_bus.flush(10)
    await own_bus.publish(TOKENS, b"x")
    assert await opened_while_away.next(2) == b"x"
    assert stream.next_nowait() is None


async def test_messages_published_while_away_are_kept_and_sent(
    private_nats: ServerProcess, own_bus: Bus
) -> None:
    stream = await own_bus.open_stream(TOKENS)
    await kill(private_nats, own_bus)
    for number in range(100):
        await own_bus.publish(TOKENS, str(number).encode())
    await start(private_nats)
    assert [await stream.next(10) for _ in range(100)] == [str(number).encode() for number in range(100)]


async def test_publishing_into_a_full_buffer_while_away_is_refused_at_once(
    private_nats: ServerProcess, own_bus: Bus
) -> None:
    await kill(private_nats, own_bus)
    with pytest.raises(Unavailable) as caught:  # noqa: PT012 - which one is refused is not the point
        for _ in range(100):
            await own_bus.publish(TOKENS, b"x" * 100_000)
    assert caught.value.reason == "OUTBOUND_FULL"
    started = time.monotonic()
    for _ in range(100):
        with pytest.raises(Unavailable):
            await own_bus.publish(TOKENS, b"x")
    assert time.monotonic() - started < 0.5


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


async def test_a_request_while_away_was_certainly_not_delivered(
    private_nats: ServerProcess, own_bus: Bus
) -> None:
    await kill(private_nats, own_bus)
    with pytest.raises(Unavailable) as caught:
        await own_bus.request("test.nobody", b"", timeout_s=5)
    assert caught.value.reason == "NOT_CONNECTED"


async def test_a_request_whose_connection_breaks_ends_at_once_with_an_unknown_outcome(
    private_nats: ServerProcess, own_bus: Bus
) -> None:
    asked = asyncio.Event()

    async def never_answer(message: Message) -> None:
        asked.set()

    await own_bus.serve("test.silent", never_answer)
    request = asyncio.create_task(own_bus.request("test.silent", b"", timeout_s=60))
    await asyncio.wait_for(asked.wait(), 5)
    started = time.monotonic()
    private_nats.kill()
    with pytest.raises(DeadlineExceeded) as caught:
        await request
    assert caught.value.reason == "CONNECTION_LOST"
    assert time.monotonic() - started < 5


async def test_jobs_outlive_a_restart_and_none_is_handed_out_twice(
    private_nats: ServerProcess, own_bus: Bus
) -> None:
    consumer = await own_bus.consume_jobs(max_outstanding=100)
    for number in range(10):
        assert await own_bus.enqueue(JOBS, str(number).encode(), msg_id=str(number))
    jobs = await take(consumer, 10)
    for job in jobs[:5]:
        await job.ack()
    await own_bus.flush()

    await reconnect(private_nats, own_bus)

    assert await own_bus.enqueue(JOBS, b"new", msg_id="new")
    (job,) = await take(consumer, 1)
    assert job.data == b"new"  # the five still held did not come again
    for held in [*jobs[5:], job]:
        await held.ack()
    await own_bus.flush()
    await consumer.close()
    successor = await own_bus.consume_jobs(max_outstanding=100)
    assert await own_bus.enqueue(JOBS, b"last", msg_id="last")
    (last,) = await take(successor, 1)
    assert last.data == b"last"  # every acknowledgement arrived


async def test_an_idle_consumer_pulls_again_at_once_after_a_restart(
    private_nats: ServerProcess, own_bus: Bus
) -> None:
    consumer = await own_bus.consume_jobs(max_outstanding=8)
    for round_number in range(3):
        await reconnect(private_nats, own_bus)
        started = time.monotonic()
        assert await own_bus.enqueue(JOBS, b"job", msg_id=str(round_number))
        (job,) = await take(consumer, 1)
        await job.ack()
        assert time.monotonic() - started < 1


async def test_acknowledging_while_away_is_done_later(private_nats: ServerProcess, own_bus: Bus) -> None:
    consumer = await own_bus.consume_jobs(max_outstanding=8)
    assert await own_bus.enqueue(JOBS, b"job", msg_id="1")
    (job,) = await take(consumer, 1)
    await kill(private_nats, own_bus)
    await job.ack()
    await start(private_nats)
    await until(lambda: own_bus.is_connected)
    assert await own_bus.enqueue(JOBS, b"next", msg_id="2")
    (following,) = await take(consumer, 1)
    assert following.data == b"next"
    await following.ack()
    await own_bus.flush()
    await consumer.close()
    successor = await own_bus.consume_jobs(max_outstanding=8)
    with pytest.raises(TimeoutError):
        await take(successor, 1, timeout_s=0.3)


async def test_jobs_queued_around_a_restart_arrive_exactly_once_each(
    private_nats: ServerProcess, own_bus: Bus
) -> None:
    consumer = await own_bus.consume_jobs(max_outstanding=1000)
    gateway = await Bus.connect(private_nats.url, name="gateway")
    seen: list[bytes] = []
    is_accepted: dict[bytes, bool] = {}

    async def consume() -> None:
        async for job in consumer:
            seen.append(job.data)
            await job.ack()

    async def submit(number: int) -> None:
        name = str(number).encode()
        is_accepted[name] = await gateway.enqueue(JOBS, name, msg_id=str(number))

    async def submit_all() -> None:
        async with asyncio.TaskGroup() as submissions:
            for number in range(300):
                submissions.create_task(submit(number))
                await asyncio.sleep(0.002)

    consuming = asyncio.create_task(consume())
    submitting = asyncio.create_task(submit_all())
    await until(lambda: len(seen) > 50)
    await kill(private_nats, gateway)
    await start(private_nats)
    await submitting
    assert all(is_accepted.values())
    await until(lambda: len(seen) >= 300)
    await own_bus.flush()
    consuming.cancel()
    await asyncio.wait([consuming])
    assert sorted(seen) == sorted(is_accepted)
    await gateway.close()


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
