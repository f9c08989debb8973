"""The bus against a real nats-server."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from inferflux.common import metrics, subjects
from inferflux.common.bus import Bus, Job, JobConsumer, Message, StreamLimits
from inferflux.common.bus.nats_client import decode_headers, encode_headers
from inferflux.common.bus.objects import ObjectBucket
from inferflux.common.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from inferflux.common.servers import ServerProcess, free_port

JOBS = subjects.jobs("m")
TOKENS = subjects.tokens("acme", "r1")


@pytest.fixture
async def own_bus(private_nats: ServerProcess) -> AsyncIterator[Bus]:
    """A bus with streams of its own."""
    bus = await Bus.connect(private_nats.url, name="test")
    await bus.ensure_streams(StreamLimits())
    yield bus
    await bus.close()


async def take(consumer: JobConsumer, count: int, timeout_s: float = 5.0) -> list[Job]:
    async with asyncio.timeout(timeout_s):
        return [await anext(consumer) for _ in range(count)]


async def assert_empty(consumer: JobConsumer) -> None:
    with pytest.raises(TimeoutError):
        await take(consumer, 1, timeout_s=0.3)


async def replay_until(bus: Bus, subject: str, count: int) -> list[bytes]:
    """Replay once the stream has taken everything in: that is not part of what a flush confirms."""
    async with asyncio.timeout(10):
        while len(messages := await bus.replay(subject)) < count:
            await asyncio.sleep(0.01)
    return messages


# Connecting


async def test_connecting_to_nobody_names_the_address_and_the_variable_but_no_password() -> None:
    port = free_port()
    with pytest.raises(Unavailable) as caught:
        await Bus.connect(f"nats://user:secret@127.0.0.1:{port}", name="t", connect_timeout_s=0.4)
    assert f"nats://127.0.0.1:{port}" in caught.value.message
    assert "INFERFLUX_NATS_URL" in caught.value.message
    assert "secret" not in caught.value.message


async def test_connecting_to_something_that_is_not_nats_ends_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(Unavailable):
            await Bus.connect(url, name="t", connect_timeout_s=0.4)
        assert time.monotonic() - started < 3


@pytest.mark.parametrize(
    "url",
    ["", " , ", "nats://127.0.0.1:notaport", "nats://:4222", "http://127.0.0.1:4222", "nats://h:1,a b"],
)
async def test_a_url_that_is_none_is_refused_naming_the_variable(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await Bus.connect(url, name="t", connect_timeout_s=0.4)
    assert caught.value.field == "INFERFLUX_NATS_URL"


async def test_a_server_that_comes_up_late_is_waited_for(tmp_path: object) -> None:
    from pathlib import Path

    server = ServerProcess.nats(Path(str(tmp_path)) / "nats")
    connecting = asyncio.create_task(Bus.connect(server.url, name="t", connect_timeout_s=10))
    await asyncio.sleep(0)
    server.start()
    try:
        bus = await connecting
        await bus.flush()
        await bus.close()
    finally:
        server.kill()


async def test_the_second_of_several_urls_will_do(nats_url: str) -> None:
    bus = await Bus.connect(f"nats://127.0.0.1:{free_port()}, {nats_url}", name="t")
    await bus.flush()
    await bus.close()


async def test_closing_twice_is_harmless(nats_url: str) -> None:
    bus = await Bus.connect(nats_url, name="t")
    await bus.close()
    await bus.close()
    with pytest.raises(Unavailable) as caught:
        await bus.publish("test.x", b"")
    assert caught.value.reason == "BUS_CLOSED"


async def test_closing_sends_what_was_published(nats_url: str, bus: Bus) -> None:
    stream = await bus.open_stream("test.closing")
    await bus.flush()
    other = await Bus.connect(nats_url, name="t")
    for number in range(1000):
        await other.publish("test.closing", str(number).encode())
    await other.close()
    assert [await stream.next(2) for _ in range(1000)] == [str(n).encode() for n in range(1000)]
    stream.close()


# Publish and request


async def test_headers_travel(bus: Bus) -> None:
    got: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    async def handler(message: Message) -> None:
        got.set_result(message)

    served = await bus.serve("test.headers", handler)
    await bus.publish("test.headers", b"x", {"traceparent": "00-abc", "Text": "grüß\r\nEvil: 1"})
    message = await asyncio.wait_for(got, 2)
    assert message.headers == {"traceparent": "00-abc", "Text": "grüß  Evil: 1"}
    assert (message.subject, message.data) == ("test.headers", b"x")
    await served.close()


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB b 0\r\n\r\n", "a\tb"])
async def test_a_subject_that_would_break_the_protocol_is_refused(bus: Bus, subject: str) -> None:
    with pytest.raises(InvalidArgument):
        await bus.publish(subject, b"x")
    await bus.flush()


async def test_a_bad_header_name_is_refused(bus: Bus) -> None:
    with pytest.raises(InvalidArgument):
        await bus.publish("test.x", b"", {"bad name": "x"})


async def test_a_message_over_the_limit_is_refused_and_the_connection_stays(bus: Bus) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await bus.publish("test.x", b"x" * (bus.max_payload + 1))
    assert caught.value.reason == "MESSAGE_TOO_LARGE"
    await bus.publish("test.x", b"x" * bus.max_payload)
    await bus.flush()


async def test_a_burst_larger_than_the_outbound_buffer_is_sent_whole(bus: Bus) -> None:
    stream = await bus.open_stream("test.burst")
    for number in range(100):
        await bus.publish("test.burst", str(number).encode() + b"x" * 50_000)
        while stream.next_nowait() is not None:
            pass
    await bus.flush()
    stream.close()


async def test_a_request_nobody_serves_fails_at_once(bus: Bus) -> None:
    started = time.monotonic()
    with pytest.raises(Unavailable) as caught:
        await bus.request("test.nobody", b"", timeout_s=30)
    assert caught.value.reason == "NO_RESPONDERS"
    assert time.monotonic() - started < 2


async def test_a_request_nobody_answers_times_out(bus: Bus) -> None:
    async def silent(message: Message) -> None:
        pass

    served = await bus.serve("test.silent", silent)
    with pytest.raises(DeadlineExceeded) as caught:
        await bus.request("test.silent", b"", timeout_s=0.05)
    assert caught.value.reason == "BUS_TIMEOUT"
    await served.close()


async def test_many_requests_at_once_get_their_own_answers(bus: Bus) -> None:
    async def echo(message: Message) -> None:
        await message.respond(message.data)

    served = await bus.serve("test.echo", echo)
    questions = [str(number).encode() for number in range(500)]
    answers = await asyncio.gather(*(bus.request("test.echo", q, timeout_s=5) for q in questions))
    assert answers == questions
    await served.close()


async def test_an_error_out_of_a_handler_is_raised_from_the_request(bus: Bus) -> None:
    async def refuse(message: Message) -> None:
        raise ResourceExhausted("no slot, no cell", reason="NO_SLOT")

    served = await bus.serve("test.refuse", refuse)
    with pytest.raises(ResourceExhausted) as caught:
        await bus.request("test.refuse", b"", timeout_s=2)
    assert (caught.value.message, caught.value.reason) == ("no slot, no cell", "NO_SLOT")
    await served.close()


async def test_a_defect_in_a_handler_is_answered_and_the_next_message_is_handled(bus: Bus) -> None:
    async def fragile(message: Message) -> None:
        if message.data == b"bad":
            raise ZeroDivisionError
        await message.respond(b"fine")

    served = await bus.serve("test.fragile", fragile)
    with pytest.raises(Internal):
        await bus.request("test.fragile", b"bad", timeout_s=2)
    assert await bus.request("test.fragile", b"good", timeout_s=2) == b"fine"
    await served.close()


async def test_messages_are_handled_one_after_the_other_in_order(bus: Bus) -> None:
    seen: list[int] = []
    running = 0
    done = asyncio.Event()

    async def handler(message: Message) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        seen.append(int(message.data))
        running -= 1
        if len(seen) == 200:
            done.set()

    served = await bus.serve("test.order.*", handler)
    for number in range(200):
        await bus.publish(f"test.order.{number % 3}", str(number).encode())
    await asyncio.wait_for(done.wait(), 5)
    assert seen == list(range(200))
    await served.close()


async def test_a_queue_group_shares_its_messages(nats_url: str, bus: Bus) -> None:
    other = await Bus.connect(nats_url, name="other")
    counts = {"a": 0, "b": 0}
    done = asyncio.Event()

    def counting(name: str) -> object:
        async def handler(message: Message) -> None:
            counts[name] += 1
            if sum(counts.values()) == 200:
                done.set()

        return handler

    first = await bus.serve("test.shared", counting("a"), queue="g")  # type: ignore[arg-type]
    await other.serve("test.shared", counting("b"), queue="g")  # type: ignore[arg-type]
    await other.flush()
    for _ in range(200):
        await bus.publish("test.shared", b"")
    await asyncio.wait_for(done.wait(), 5)
    await bus.flush()
    assert sum(counts.values()) == 200
    assert all(counts.values())
    await first.close()
    await other.close()


async def test_a_handler_may_close_its_own_subscription(bus: Bus) -> None:
    closed = asyncio.Event()

    async def once(message: Message) -> None:
        await served.close()
        closed.set()

    served = await bus.serve("test.once", once)
    await bus.publish("test.once", b"1")
    await asyncio.wait_for(closed.wait(), 2)
    await bus.flush()
    with pytest.raises(Unavailable):
        await bus.request("test.once", b"2", timeout_s=2)


async def test_a_subject_that_is_not_utf8_does_not_deafen_the_connection(nats_url: str, bus: Bus) -> None:
    got = asyncio.Event()

    async def handler(message: Message) -> None:
        assert message.subject.startswith("test.raw.")
        got.set()

    served = await bus.serve("test.raw.*", handler)
    await bus.flush()
    host, port = nats_url.removeprefix("nats://").split(":")
    _reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\nPUB test.raw.\xff\xfe 1\r\nx\r\n')
    await writer.drain()
    await asyncio.wait_for(got.wait(), 2)
    got.clear()
    writer.write(b"HPUB test.raw.a 18 19\r\nNATS/1.0\r\n\xff: \xff\r\n\r\nx\r\n")
    await writer.drain()
    await asyncio.wait_for(got.wait(), 2)
    writer.close()
    await writer.wait_closed()
    await bus.flush()
    await served.close()


async def test_a_message_that_cannot_be_answered_is_counted_and_not_handled(nats_url: str, bus: Bus) -> None:
    handled: list[bytes] = []

    async def handler(message: Message) -> None:
        handled.append(message.data)
        await message.respond(b"here")

    served = await bus.serve("test.answered", handler)
    await bus.flush()
    bad = metrics.BUS_BAD_MESSAGES.labels("reply_subject")._value
    before = bad.get(), unexpected_errors()
    host, port = nats_url.removeprefix("nats://").split(":")
    _reader, writer = await asyncio.open_connection(host, int(port))
    odd = [b"\xff\xfe", "a\u2003b".encode(), b"x" * 3000]
    puts = b"".join(b"PUB test.answered " + reply + b" 1\r\n%d\r\n" % i for i, reply in enumerate(odd))
    writer.write(b'CONNECT {"verbose":false}\r\n' + puts)
    await writer.drain()
    async with asyncio.timeout(2):
        while bad.get() < before[0] + 2 or b"2" not in handled:
            await asyncio.sleep(0.01)
    assert await bus.request("test.answered", b"mine", timeout_s=2) == b"here"
    assert handled == [b"2", b"mine"]
    assert unexpected_errors() == before[1]
    writer.close()
    await writer.wait_closed()
    await served.close()


def unexpected_errors() -> float:
    """Defects that this process has counted in the handlers of messages."""
    return float(metrics.UNEXPECTED_ERRORS.labels(where="bus")._value.get())


def test_headers_survive_their_encoding() -> None:
    headers = {"A": "1", "traceparent": "00-4bf92f-00", "B": ""}
    assert decode_headers(encode_headers(headers)) == (0, headers)
    assert decode_headers(None) == (0, {})
    status = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\n\r\n"
    assert decode_headers(status) == (
        408,
        {"Description": "Request Timeout", "Nats-Pending-Messages": "3"},
    )


# Token streams


async def test_a_token_stream_times_out_without_losing_the_next_message(bus: Bus) -> None:
    stream = await bus.open_stream("test.tokens")
    with pytest.raises(TimeoutError):
        await stream.next(0.01)
    assert stream.next_nowait() is None
    await bus.publish("test.tokens", b"x")
    assert await stream.next(2) == b"x"
    stream.close()


async def test_a_cancelled_reader_loses_nothing(bus: Bus) -> None:
    stream = await bus.open_stream("test.cancelled")
    reader = asyncio.create_task(stream.next(10))
    await asyncio.sleep(0)
    await bus.publish("test.cancelled", b"x")
    await bus.flush()
    reader.cancel()
    results = await asyncio.gather(reader, return_exceptions=True)
    got = [result for result in results if isinstance(result, bytes)]
    if not got:
        got.append(await stream.next(2))
    assert got == [b"x"]
    stream.close()


async def test_a_slow_reader_is_told_that_messages_were_dropped(bus: Bus) -> None:
    stream = await bus.open_stream("test.slow")
    for _ in range(20):
        await bus.publish("test.slow", b"x" * 100_000)
        await bus.flush()
    assert stream.dropped
    count = 0
    while stream.next_nowait() is not None:
        count += 1
    assert 5 <= count < 20
    await bus.publish("test.slow", b"next")
    assert await stream.next(2) == b"next"
    assert not stream.dropped
    stream.close()


async def test_one_message_larger_than_the_limit_still_arrives(bus: Bus) -> None:
    stream = await bus.open_stream("test.large")
    await bus.publish("test.large", b"x" * 3_000_000)
    assert len(await stream.next(5)) == 3_000_000
    assert not stream.dropped
    stream.close()


async def test_a_closed_stream_gets_nothing_more(bus: Bus) -> None:
    stream = await bus.open_stream("test.closed")
    stream.close()
    stream.close()
    await bus.publish("test.closed", b"x")
    await bus.flush()
    assert stream.next_nowait() is None


# Streams


async def test_making_the_streams_twice_and_at_once_by_many_is_fine(private_nats: ServerProcess) -> None:
    buses = [await Bus.connect(private_nats.url, name=f"t{number}") for number in range(6)]
    limits = StreamLimits()
    await asyncio.gather(*(bus.ensure_streams(limits) for bus in buses))
    await asyncio.gather(
        *(bus.ensure_streams(replace(limits, queue_limit=10 + n)) for n, bus in enumerate(buses))
    )
    await asyncio.gather(*(bus.close() for bus in buses))


@pytest.mark.parametrize("max_age_s", [1.0, 60.0, 86400.0])
async def test_existing_streams_take_on_other_limits(own_bus: Bus, max_age_s: float) -> None:
    await own_bus.ensure_streams(StreamLimits(queue_limit=2, tokens_max_age_s=max_age_s))
    assert await own_bus.enqueue(JOBS, b"", msg_id="1")
    assert await own_bus.enqueue(JOBS, b"", msg_id="2")
    with pytest.raises(ResourceExhausted) as caught:
        await own_bus.enqueue(JOBS, b"", msg_id="3")
    assert caught.value.retry_delay_s


async def test_replay_gives_a_subject_from_its_beginning_and_nothing_else(own_bus: Bus) -> None:
    other = subjects.tokens("acme", "r2")
    for number in range(3000):
        await own_bus.publish(TOKENS, str(number).encode())
        if number % 2:
            await own_bus.publish(other, b"other")
    assert await replay_until(own_bus, TOKENS, 3000) == [str(number).encode() for number in range(3000)]
    assert len(await replay_until(own_bus, other, 1500)) == 1500
    assert await own_bus.replay(subjects.tokens("acme", "none")) == []


async def test_replay_of_more_than_fits_one_batch_of_bytes(own_bus: Bus) -> None:
    for number in range(200):
        await own_bus.publish(TOKENS, b"%03d" % number + b"x" * 100_000)
    assert [data[:3] for data in await replay_until(own_bus, TOKENS, 200)] == [
        b"%03d" % n for n in range(200)
    ]


async def test_replay_without_a_stream_is_empty(private_nats: ServerProcess) -> None:
    bus = await Bus.connect(private_nats.url, name="t")
    assert await bus.replay(TOKENS) == []
    await bus.close()


async def test_old_chunks_go_when_the_replay_buffer_is_full(own_bus: Bus) -> None:
    await own_bus.ensure_streams(StreamLimits(tokens_max_bytes=1 << 20))
    for number in range(30):
        await own_bus.publish(TOKENS, b"%02d" % number + b"x" * 100_000)
    kept: list[bytes] = []
    async with asyncio.timeout(10):
        while kept[-1:] != [b"29"]:
            kept = [data[:2] for data in await own_bus.replay(TOKENS)]
    assert 5 < len(kept) <= 10


# The work queue


async def test_an_id_used_twice_is_a_duplicate(own_bus: Bus) -> None:
    assert await own_bus.enqueue(JOBS, b"1", msg_id="a") is True
    assert await own_bus.enqueue(JOBS, b"2", msg_id="a") is False
    results = await asyncio.gather(*(own_bus.enqueue(JOBS, b"", msg_id="b") for _ in range(20)))
    assert sum(results) == 1


async def test_an_id_refused_by_a_full_queue_may_be_used_again(own_bus: Bus) -> None:
    await own_bus.ensure_streams(StreamLimits(queue_limit=1))
    consumer = await own_bus.consume_jobs(max_outstanding=1)
    assert await own_bus.enqueue(JOBS, b"first", msg_id="1")
    with pytest.raises(ResourceExhausted):
        await own_bus.enqueue(JOBS, b"second", msg_id="2")
    (job,) = await take(consumer, 1)
    await job.ack()
    await own_bus.flush()
    assert await own_bus.enqueue(JOBS, b"second", msg_id="2")
    (job,) = await take(consumer, 1)
    assert job.data == b"second"


async def test_queueing_without_a_stream_fails_in_bounded_time(
    private_nats: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferflux.common.bus.queueing._TOTAL_TIMEOUT_S", 0.5)
    bus = await Bus.connect(private_nats.url, name="t")
    with pytest.raises(Unavailable) as caught:
        await bus.enqueue(JOBS, b"", msg_id="1")
    assert caught.value.reason == "QUEUE_UNAVAILABLE"
    with pytest.raises(Unavailable):
        await bus.consume_jobs(max_outstanding=1)
    await bus.close()


async def test_a_job_carries_its_data_and_headers(own_bus: Bus) -> None:
    consumer = await own_bus.consume_jobs(max_outstanding=4)
    await own_bus.enqueue(JOBS, b"data", msg_id="id", headers={"traceparent": "00-x"})
    (job,) = await take(consumer, 1)
    assert (job.data, job.sequence, job.redelivered) == (b"data", 1, 0)
    assert job.headers["traceparent"] == "00-x"
    assert job.headers["Nats-Msg-Id"] == "id"


async def test_a_backlog_of_many_batches_comes_in_order(own_bus: Bus) -> None:
    for start in range(0, 2000, 200):
        await asyncio.gather(
            *(own_bus.enqueue(JOBS, str(n).encode(), msg_id=str(n)) for n in range(start, start + 200))
        )
    consumer = await own_bus.consume_jobs(max_outstanding=4096)
    jobs = await take(consumer, 2000)
    assert [job.sequence for job in jobs] == list(range(1, 2001))
    for job in jobs:
        await job.ack()
    await assert_empty(consumer)


async def test_no_more_than_max_outstanding_are_held(own_bus: Bus) -> None:
    for number in range(5):
        await own_bus.enqueue(JOBS, b"", msg_id=str(number))
    consumer = await own_bus.consume_jobs(max_outstanding=3)
    jobs = await take(consumer, 3)
    await assert_empty(consumer)
    await jobs[0].ack()
    (fourth,) = await take(consumer, 1)
    assert fourth.sequence == 4


async def test_a_new_consumer_gets_everything_unacknowledged_at_once_and_ends_the_old_one(
    own_bus: Bus,
) -> None:
    old = await own_bus.consume_jobs(max_outstanding=10)
    for number in range(4):
        await own_bus.enqueue(JOBS, b"", msg_id=str(number))
    jobs = await take(old, 4)
    await jobs[1].ack()
    await own_bus.flush()

    new = await own_bus.consume_jobs(max_outstanding=10)
    assert [job.sequence for job in await take(new, 3)] == [1, 3, 4]
    with pytest.raises(Unavailable) as caught:
        await take(old, 1)
    assert caught.value.reason == "CONSUMER_TAKEN_OVER"


async def test_a_consumer_whose_durable_was_deleted_makes_it_again(own_bus: Bus) -> None:
    consumer = await own_bus.consume_jobs(max_outstanding=10)
    await own_bus._link.api(f"CONSUMER.DELETE.{subjects.JOBS_STREAM}.{subjects.SCHEDULER_CONSUMER}")
    await own_bus.enqueue(JOBS, b"x", msg_id="1")
    (job,) = await take(consumer, 1)
    assert job.data == b"x"


async def test_a_job_given_back_comes_again_and_a_terminated_one_does_not(own_bus: Bus) -> None:
    consumer = await own_bus.consume_jobs(max_outstanding=10)
    await own_bus.enqueue(JOBS, b"back", msg_id="1")
    (job,) = await take(consumer, 1)
    await job.nak()
    (again,) = await take(consumer, 1)
    assert (again.data, again.redelivered) == (b"back", 1)
    started = time.monotonic()
    await again.nak(delay_s=0.3)
    (again,) = await take(consumer, 1)
    assert time.monotonic() - started >= 0.25
    await again.term()
    await own_bus.flush()
    await consumer.close()
    await assert_empty(await own_bus.consume_jobs(max_outstanding=10))


async def test_a_job_held_longer_than_ack_wait_is_not_handed_out_twice(own_bus: Bus) -> None:
    consumer = await own_bus.consume_jobs(max_outstanding=10, ack_wait_s=0.2)
    await own_bus.enqueue(JOBS, b"x", msg_id="1")
    (job,) = await take(consumer, 1)
    first_reply = job.reply
    with pytest.raises(TimeoutError):
        await take(consumer, 1, timeout_s=0.6)
    assert job.reply != first_reply  # it did come again
    await job.ack()
    await own_bus.flush()
    await consumer.close()
    await assert_empty(await own_bus.consume_jobs(max_outstanding=10))


async def test_progress_keeps_a_job_from_being_delivered_again(own_bus: Bus) -> None:
    consumer = await own_bus.consume_jobs(max_outstanding=10, ack_wait_s=0.5)
    await own_bus.enqueue(JOBS, b"x", msg_id="1")
    (job,) = await take(consumer, 1)
    reply = job.reply
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await take(consumer, 1, timeout_s=0.2)
        await job.in_progress()
    assert job.reply == reply


async def test_a_pull_that_expires_is_made_again(own_bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferflux.common.bus.jobs._EXPIRES_S", 0.3)
    monkeypatch.setattr("inferflux.common.bus.jobs._HEARTBEAT_S", 0.1)
    consumer = await own_bus.consume_jobs(max_outstanding=10)
    await assert_empty(consumer)
    await assert_empty(consumer)
    await own_bus.enqueue(JOBS, b"x", msg_id="1")
    (job,) = await take(consumer, 1, timeout_s=1)
    await job.ack()


async def test_a_closed_consumer_ends_its_iteration(own_bus: Bus) -> None:
    consumer = await own_bus.consume_jobs(max_outstanding=10)

    async def drain() -> list[Job]:
        return [job async for job in consumer]

    draining = asyncio.create_task(drain())
    await asyncio.sleep(0)
    await consumer.close()
    assert await asyncio.wait_for(draining, 2) == []


# The object store


async def test_an_object_comes_back_as_it_was_put(own_bus: Bus) -> None:
    data = bytes(range(256)) * 40_000  # 10 MB
    await own_bus.put_object("digest/abc", data)
    assert await own_bus.get_object("digest/abc") == data
    await own_bus.put_object("empty", b"")
    assert await own_bus.get_object("empty") == b""


async def test_an_object_put_again_is_replaced_and_leaves_nothing_behind(own_bus: Bus) -> None:
    await own_bus.put_object("name", b"1" * 300_000)
    await own_bus.put_object("name", b"2" * 300_000)
    await own_bus.put_object("name", b"2" * 300_000)
    assert await own_bus.get_object("name") == b"2" * 300_000
    info = await own_bus._link.api(f"STREAM.INFO.OBJ_{subjects.TOKENIZERS_BUCKET}")
    assert info["state"]["messages"] == 3 + 1  # chunks and the description


async def test_putting_the_same_object_from_many_workers_at_once(private_nats: ServerProcess) -> None:
    buses = [await Bus.connect(private_nats.url, name=f"t{number}") for number in range(4)]
    await buses[0].ensure_streams(StreamLimits())
    data = b"tokenizer" * 50_000
    await asyncio.gather(*(bus.put_object("same", data) for bus in buses))
    assert await buses[0].get_object("same") == data
    await asyncio.gather(*(bus.close() for bus in buses))


async def test_an_unknown_object_is_not_found(own_bus: Bus) -> None:
    with pytest.raises(NotFound):
        await own_bus.get_object("nothing")


async def test_an_object_without_a_bucket_is_not_found(private_nats: ServerProcess) -> None:
    bus = await Bus.connect(private_nats.url, name="t")
    with pytest.raises(NotFound):
        await bus.get_object("nothing")
    await bus.close()


async def test_a_damaged_object_is_refused(own_bus: Bus) -> None:
    await own_bus.put_object("name", b"1" * 300_000)
    bucket = subjects.TOKENIZERS_BUCKET
    await own_bus._link.api(f"STREAM.PURGE.OBJ_{bucket}", {"filter": f"$O.{bucket}.C.>", "keep": 1})
    with pytest.raises(Internal) as caught:
        await own_bus.get_object("name")
    assert caught.value.reason == "OBJECT_DAMAGED"


async def test_an_object_beyond_the_bound_is_neither_stored_nor_read(own_bus: Bus) -> None:
    small = ObjectBucket(own_bus._link, subjects.TOKENIZERS_BUCKET, max_bytes=200_000)
    await small.put("name", b"1" * 200_000)
    assert await small.get("name") == b"1" * 200_000
    with pytest.raises(InvalidArgument, match="'name' has 200001 bytes"):
        await small.put("name", b"2" * 200_001)
    await own_bus.put_object("name", b"2" * 200_001)
    with pytest.raises(Internal, match=r"'name' .* has 200001 bytes") as caught:
        await small.get("name")
    assert caught.value.reason == "OBJECT_TOO_LARGE"


async def test_an_object_longer_than_it_says_is_not_read_to_its_end(own_bus: Bus) -> None:
    await own_bus.put_object("name", b"1" * 300_000)
    bucket = own_bus._bucket
    info = await bucket._info("name")
    assert info is not None
    told = json.dumps(info | {"size": 100_000}).encode()
    await bucket._publish(bucket._info_subject("name"), told, {"Nats-Rollup": "sub"})
    with pytest.raises(Internal) as caught:
        await own_bus.get_object("name")
    assert caught.value.reason == "OBJECT_DAMAGED"


async def test_nats_py_reads_our_objects_and_we_read_its(own_bus: Bus, private_nats: ServerProcess) -> None:
    import nats

    client = await nats.connect(private_nats.url)
    store = await client.jetstream().object_store(subjects.TOKENIZERS_BUCKET)
    await own_bus.put_object("ours", b"o" * 200_000)
    assert (await store.get("ours")).data == b"o" * 200_000
    await store.put("theirs", b"t" * 200_000)
    assert await own_bus.get_object("theirs") == b"t" * 200_000
    await store.delete("theirs")
    with pytest.raises(NotFound):
        await own_bus.get_object("theirs")
    await client.close()
