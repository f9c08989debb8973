"""What the bus promises, whatever is behind it: run against nats-server and against `MemoryNats`.

A subclass gives the fixture `server`.
"""

from __future__ import annotations

import asyncio
import string
import time
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import pytest

from inferflux.common.bus import Bus, Job, JobConsumer, Message, StreamLimits, jetstream
from inferflux.common.bus.key_value import Entry, KeyValueBucket
from inferflux.common.bus.link import Link
from inferflux.common.contract import attempts, subjects
from inferflux.common.contract.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from inferflux.common.contract.partitions import Partition, divide

JOBS = subjects.jobs("m")
TOKENS = subjects.tokens("acme", "r1")
STREAM = f"KV_{subjects.SCHEDULERS_BUCKET}"


class Server(Protocol):
    """What stands behind the bus."""

    async def connect(self, name: str = "test") -> Bus: ...

    def kill(self) -> None:
        """End it as a killed process ends: files stay."""

    async def start(self) -> None:
        """Start it again, with the files it left."""


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


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


async def queue(bus: Bus, *models: str) -> None:
    """Queue a job for each of the models, its name as its data."""
    for model in models:
        assert await bus.enqueue(subjects.jobs(model), model.encode(), msg_id=model)


async def kill(server: Server, bus: Bus) -> None:
    server.kill()
    await until(lambda: not bus.is_connected)


async def reconnect(server: Server, bus: Bus) -> None:
    """Restart the server and return when the bus has recovered all it promises."""
    recovered = asyncio.Event()

    async def on_reconnect() -> None:
        recovered.set()

    bus.on_reconnect(on_reconnect)
    await kill(server, bus)
    await server.start()
    await asyncio.wait_for(recovered.wait(), 10)


class BusContract:
    @pytest.fixture
    async def bus(self, server: Server) -> AsyncIterator[Bus]:
        """A connection without streams."""
        bus = await server.connect()
        yield bus
        await bus.close()

    @pytest.fixture
    async def own_bus(self, bus: Bus) -> Bus:
        """The connection, with the streams made."""
        await bus.ensure_streams(StreamLimits())
        return bus

    @pytest.fixture
    def bucket(self, own_bus: Bus) -> KeyValueBucket:
        return own_bus.key_value(subjects.SCHEDULERS_BUCKET)

    async def test_closing_twice_is_harmless(self, server: Server) -> None:
        bus = await server.connect(name="t")
        await bus.close()
        await bus.close()
        with pytest.raises(Unavailable) as caught:
            await bus.publish("test.x", b"")
        assert caught.value.reason == "BUS_CLOSED"

    async def test_closing_sends_what_was_published(self, server: Server, bus: Bus) -> None:
        stream = await bus.open_stream("test.closing")
        await bus.flush()
        other = await server.connect(name="t")
        for number in range(1000):
            await other.publish("test.closing", str(number).encode())
        await other.close()
        assert [await stream.next(2) for _ in range(1000)] == [str(n).encode() for n in range(1000)]
        stream.close()

    async def test_headers_travel(self, bus: Bus) -> None:
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
    async def test_a_subject_that_would_break_the_protocol_is_refused(self, bus: Bus, subject: str) -> None:
        with pytest.raises(InvalidArgument):
            await bus.publish(subject, b"x")
        await bus.flush()

    async def test_a_bad_header_name_is_refused(self, bus: Bus) -> None:
        with pytest.raises(InvalidArgument):
            await bus.publish("test.x", b"", {"bad name": "x"})

    async def test_a_message_over_the_limit_is_refused_and_the_connection_stays(self, bus: Bus) -> None:
        with pytest.raises(InvalidArgument) as caught:
            await bus.publish("test.x", b"x" * (bus.max_payload + 1))
        assert caught.value.reason == "MESSAGE_TOO_LARGE"
        await bus.publish("test.x", b"x" * bus.max_payload)
        await bus.flush()

    async def test_a_request_without_a_subscriber_fails_at_once(self, bus: Bus) -> None:
        started = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            await bus.request("test.unserved", b"", timeout_s=30)
        assert caught.value.reason == "NO_RESPONDERS"
        assert time.monotonic() - started < 2

    async def test_a_request_without_an_answer_times_out(self, bus: Bus) -> None:
        async def silent(message: Message) -> None:
            pass

        served = await bus.serve("test.silent", silent)
        with pytest.raises(DeadlineExceeded) as caught:
            await bus.request("test.silent", b"", timeout_s=0.05)
        assert caught.value.reason == "BUS_TIMEOUT"
        await served.close()

    async def test_many_requests_at_once_get_their_own_answers(self, bus: Bus) -> None:
        async def echo(message: Message) -> None:
            await message.respond(message.data)

        served = await bus.serve("test.echo", echo)
        questions = [str(number).encode() for number in range(500)]
        answers = await asyncio.gather(*(bus.request("test.echo", q, timeout_s=5) for q in questions))
        assert answers == questions
        await served.close()

    async def test_an_error_out_of_a_handler_is_raised_from_the_request(self, bus: Bus) -> None:
        async def refuse(message: Message) -> None:
            raise ResourceExhausted("no slot, no cell", reason="NO_SLOT")

        served = await bus.serve("test.refuse", refuse)
        with pytest.raises(ResourceExhausted) as caught:
            await bus.request("test.refuse", b"", timeout_s=2)
        assert (caught.value.message, caught.value.reason) == ("no slot, no cell", "NO_SLOT")
        await served.close()

    async def test_a_defect_in_a_handler_is_answered_and_the_next_message_is_handled(self, bus: Bus) -> None:
        async def fragile(message: Message) -> None:
            if message.data == b"bad":
                raise ZeroDivisionError
            await message.respond(b"fine")

        served = await bus.serve("test.fragile", fragile)
        with pytest.raises(Internal):
            await bus.request("test.fragile", b"bad", timeout_s=2)
        assert await bus.request("test.fragile", b"good", timeout_s=2) == b"fine"
        await served.close()

    async def test_messages_are_handled_one_after_the_other_in_order(self, bus: Bus) -> None:
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

    async def test_a_queue_group_shares_its_messages(self, server: Server, bus: Bus) -> None:
        other = await server.connect(name="other")
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

    async def test_a_handler_may_close_its_own_subscription(self, bus: Bus) -> None:
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

    async def test_a_token_stream_times_out_without_losing_the_next_message(self, bus: Bus) -> None:
        stream = await bus.open_stream("test.tokens")
        with pytest.raises(TimeoutError):
            await stream.next(0.01)
        assert stream.next_nowait() is None
        await bus.publish("test.tokens", b"x")
        assert await stream.next(2) == b"x"
        stream.close()

    async def test_a_cancelled_reader_loses_nothing(self, bus: Bus) -> None:
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

    async def test_a_slow_reader_is_told_that_messages_were_dropped(self, bus: Bus) -> None:
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

    async def test_a_closed_stream_gets_nothing_more(self, bus: Bus) -> None:
        stream = await bus.open_stream("test.closed")
        stream.close()
        stream.close()
        await bus.publish("test.closed", b"x")
        await bus.flush()
        assert stream.next_nowait() is None

    @pytest.mark.parametrize("max_age_s", [1.0, 60.0, 86400.0])
    async def test_existing_streams_take_on_other_limits(self, own_bus: Bus, max_age_s: float) -> None:
        await own_bus.ensure_streams(StreamLimits(queue_limit=2, tokens_max_age_s=max_age_s))
        assert await own_bus.enqueue(JOBS, b"", msg_id="1")
        assert await own_bus.enqueue(JOBS, b"", msg_id="2")
        with pytest.raises(ResourceExhausted) as caught:
            await own_bus.enqueue(JOBS, b"", msg_id="3")
        assert caught.value.retry_delay_s

    async def test_replay_gives_a_subject_from_its_beginning_and_nothing_else(self, own_bus: Bus) -> None:
        other = subjects.tokens("acme", "r2")
        for number in range(3000):
            await own_bus.publish(TOKENS, str(number).encode())
            if number % 2:
                await own_bus.publish(other, b"other")
        assert await replay_until(own_bus, TOKENS, 3000) == [str(number).encode() for number in range(3000)]
        assert len(await replay_until(own_bus, other, 1500)) == 1500
        assert await own_bus.replay(subjects.tokens("acme", "none")) == []

    async def test_replay_of_more_than_fits_one_batch_of_bytes(self, own_bus: Bus) -> None:
        for number in range(200):
            await own_bus.publish(TOKENS, b"%03d" % number + b"x" * 100_000)
        assert [data[:3] for data in await replay_until(own_bus, TOKENS, 200)] == [
            b"%03d" % n for n in range(200)
        ]

    async def test_replay_without_a_stream_is_empty(self, server: Server) -> None:
        bus = await server.connect(name="t")
        assert await bus.replay(TOKENS) == []
        await bus.close()

    async def test_an_id_used_twice_is_a_duplicate(self, own_bus: Bus) -> None:
        assert await own_bus.enqueue(JOBS, b"1", msg_id="a")
        assert await own_bus.enqueue(JOBS, b"2", msg_id="a") == ""
        results = await asyncio.gather(*(own_bus.enqueue(JOBS, b"", msg_id="b") for _ in range(20)))
        assert sum(map(bool, results)) == 1

    async def test_the_same_call_is_told_which_job_is_there(self, own_bus: Bus) -> None:
        first, again, other = (
            attempts.new(caller=caller, idempotency_key="a call") for caller in ("key", "key", "another")
        )
        for attempt, stored in ((first, first), (again, first), (other, "")):
            assert await own_bus.enqueue(JOBS, b"", msg_id="a", attempt=attempt) == stored
        (job,) = await take(await own_bus.consume_jobs(max_outstanding=1), 1)
        await job.ack()
        await own_bus.flush()
        # Nothing tells any more whose it was.
        assert await own_bus.enqueue(JOBS, b"", msg_id="a", attempt=again) == ""

    async def test_a_job_is_known_again_though_it_cannot_be_read_at_first(
        self, own_bus: Bus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As while servers of a cluster elect."""
        read, failures = jetstream.read_headers, [Unavailable("no", reason="NO_RESPONDERS")]

        async def read_at_last(link: Link, stream: str, sequence: int) -> dict[str, str] | None:
            if failures:
                raise failures.pop()
            return await read(link, stream, sequence)

        monkeypatch.setattr(jetstream, "read_headers", read_at_last)
        first, again = (attempts.new(caller="key", idempotency_key="a call") for _ in range(2))
        assert await own_bus.enqueue(JOBS, b"", msg_id="a", attempt=first) == first
        assert await own_bus.enqueue(JOBS, b"", msg_id="a", attempt=again) == first
        assert not failures

    async def test_an_id_refused_by_a_full_queue_may_be_used_again(self, own_bus: Bus) -> None:
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
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("inferflux.common.bus.queueing._TOTAL_TIMEOUT_S", 0.5)
        bus = await server.connect(name="t")
        with pytest.raises(Unavailable) as caught:
            await bus.enqueue(JOBS, b"", msg_id="1")
        assert caught.value.reason == "QUEUE_UNAVAILABLE"
        with pytest.raises(Unavailable):
            await bus.consume_jobs(max_outstanding=1)
        await bus.close()

    async def test_a_job_carries_its_data_and_headers(self, own_bus: Bus) -> None:
        consumer = await own_bus.consume_jobs(max_outstanding=4)
        await own_bus.enqueue(JOBS, b"data", msg_id="id", headers={"traceparent": "00-x"})
        (job,) = await take(consumer, 1)
        assert (job.data, job.sequence) == (b"data", 1)
        assert job.headers["traceparent"] == "00-x"
        assert job.headers["Nats-Msg-Id"] == "id"

    async def test_a_backlog_of_many_batches_comes_in_order(self, own_bus: Bus) -> None:
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

    async def test_no_more_than_max_outstanding_are_held(self, own_bus: Bus) -> None:
        for number in range(5):
            await own_bus.enqueue(JOBS, b"", msg_id=str(number))
        consumer = await own_bus.consume_jobs(max_outstanding=3)
        jobs = await take(consumer, 3)
        await assert_empty(consumer)
        await jobs[0].ack()
        (fourth,) = await take(consumer, 1)
        assert fourth.sequence == 4

    async def test_a_new_consumer_gets_everything_unacknowledged_at_once_and_ends_the_old_one(
        self,
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

    async def test_a_job_is_as_old_as_it_is_whatever_this_hosts_clock_says(
        self, own_bus: Bus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await own_bus.enqueue(JOBS, b"", msg_id="1")
        stored_s = time.monotonic()
        monkeypatch.setattr("inferflux.common.bus.server_clock.time.time", lambda: 0.0)
        consumer = await own_bus.consume_jobs(max_outstanding=10)
        (job,) = await take(consumer, 1)
        await until(lambda: time.monotonic() > stored_s + 1.5)
        # Both ends of each, for what the answer takes is not counted.
        least_s = time.monotonic() - stored_s - 1.0
        age_s = await consumer.age_s(job)
        assert least_s < age_s < 60

    async def test_a_consumer_knows_what_went_to_others(self, own_bus: Bus) -> None:
        for number in range(3):
            await own_bus.enqueue(JOBS, b"", msg_id=str(number))
        consumer = await own_bus.consume_jobs(max_outstanding=10)
        await own_bus.enqueue(JOBS, b"", msg_id="new")
        assert [job.is_inherited for job in await take(consumer, 4)] == [True, True, True, False]

    async def test_none_of_a_queue_that_was_made_anew_went_to_others(self, own_bus: Bus) -> None:
        await own_bus.ensure_streams(StreamLimits())
        for number in range(3):
            await own_bus.enqueue(JOBS, b"", msg_id=str(number))
        consumer = await own_bus.consume_jobs(max_outstanding=10)
        await take(consumer, 3)
        await own_bus._link.api(f"STREAM.DELETE.{subjects.JOBS_STREAM}")
        await own_bus.enqueue(JOBS, b"", msg_id="new")
        (job,) = await take(consumer, 1, timeout_s=20)
        assert (job.sequence, job.is_inherited) == (1, False)

    async def test_a_terminated_job_does_not_come_again(self, own_bus: Bus) -> None:
        consumer = await own_bus.consume_jobs(max_outstanding=10)
        await own_bus.enqueue(JOBS, b"back", msg_id="1")
        (job,) = await take(consumer, 1)
        await job.term()
        await own_bus.flush()
        await consumer.close()
        await assert_empty(await own_bus.consume_jobs(max_outstanding=10))

    async def test_a_job_held_longer_than_ack_wait_is_not_handed_out_twice(self, own_bus: Bus) -> None:
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

    async def test_progress_keeps_a_job_from_being_delivered_again(self, own_bus: Bus) -> None:
        consumer = await own_bus.consume_jobs(max_outstanding=10, ack_wait_s=0.5)
        await own_bus.enqueue(JOBS, b"x", msg_id="1")
        (job,) = await take(consumer, 1)
        reply = job.reply
        for _ in range(5):
            with pytest.raises(TimeoutError):
                await take(consumer, 1, timeout_s=0.2)
            await job.in_progress()
        assert job.reply == reply

    async def test_a_closed_consumer_ends_its_iteration(self, own_bus: Bus) -> None:
        consumer = await own_bus.consume_jobs(max_outstanding=10)

        async def drain() -> list[Job]:
            return [job async for job in consumer]

        draining = asyncio.create_task(drain())
        await asyncio.sleep(0)
        await consumer.close()
        assert await asyncio.wait_for(draining, 2) == []

    async def test_an_object_comes_back_as_it_was_put(self, own_bus: Bus) -> None:
        data = bytes(range(256)) * 40_000  # 10 MB
        await own_bus.put_object("digest/abc", data)
        assert await own_bus.get_object("digest/abc") == data
        await own_bus.put_object("empty", b"")
        assert await own_bus.get_object("empty") == b""

    async def test_putting_the_same_object_from_many_workers_at_once(self, server: Server) -> None:
        buses = [await server.connect(name=f"t{number}") for number in range(4)]
        await buses[0].ensure_streams(StreamLimits())
        data = b"tokenizer" * 50_000
        await asyncio.gather(*(bus.put_object("same", data) for bus in buses))
        assert await buses[0].get_object("same") == data
        await asyncio.gather(*(bus.close() for bus in buses))

    async def test_an_unknown_object_is_not_found(self, own_bus: Bus) -> None:
        with pytest.raises(NotFound):
            await own_bus.get_object("nothing")

    async def test_an_object_without_a_bucket_is_not_found(self, server: Server) -> None:
        bus = await server.connect(name="t")
        with pytest.raises(NotFound):
            await bus.get_object("nothing")
        await bus.close()

    async def test_a_key_without_a_value_has_none(self, bucket: KeyValueBucket) -> None:
        assert await bucket.get("nothing") is None

    async def test_a_value_is_read_as_it_was_written_with_its_revision(self, bucket: KeyValueBucket) -> None:
        first = await bucket.create("lease.all", b"one")
        assert first is not None
        assert await bucket.get("lease.all") == Entry(b"one", first)
        second = await bucket.update("lease.all", b"", revision=first)
        assert second is not None
        assert await bucket.get("lease.all") == Entry(b"", second)

    async def test_only_the_first_of_many_creates_a_value(self, bucket: KeyValueBucket) -> None:
        revisions = await asyncio.gather(*(bucket.create("lease", b"%d" % i) for i in range(10)))
        winners = [i for i, revision in enumerate(revisions) if revision is not None]
        assert len(winners) == 1
        entry = await bucket.get("lease")
        assert entry is not None
        assert entry.value == b"%d" % winners[0]

    async def test_an_update_of_an_older_revision_is_refused_and_changes_nothing(
        self, bucket: KeyValueBucket
    ) -> None:
        first = await bucket.create("lease", b"1") or 0
        second = await bucket.update("lease", b"2", revision=first)
        assert await bucket.update("lease", b"late", revision=first) is None
        assert await bucket.get("lease") == Entry(b"2", second or 0)

    async def test_keys_do_not_hinder_each_other(self, bucket: KeyValueBucket) -> None:
        first = await bucket.create("lease.a", b"a") or 0
        assert await bucket.create("lease.b", b"b") is not None
        assert await bucket.update("lease.a", b"a2", revision=first) is not None

    async def test_a_deleted_value_is_gone_and_may_be_created_again(
        self, own_bus: Bus, bucket: KeyValueBucket
    ) -> None:
        first = await bucket.create("lease", b"1") or 0
        await own_bus.publish(f"$KV.{subjects.SCHEDULERS_BUCKET}.lease", b"", {"KV-Operation": "DEL"})
        await own_bus.flush()
        async with asyncio.timeout(5):
            while await bucket.get("lease") is not None:
                await asyncio.sleep(0.01)
        assert await bucket.update("lease", b"late", revision=first) is None
        revision = await bucket.create("lease", b"2")
        assert await bucket.get("lease") == Entry(b"2", revision or 0)

    async def test_without_a_bucket_there_is_nothing_to_read_and_nowhere_to_write(
        self, own_bus: Bus, bucket: KeyValueBucket
    ) -> None:
        await own_bus._link.api(f"STREAM.DELETE.{STREAM}")
        assert await bucket.get("lease") is None
        with pytest.raises(Unavailable):
            await bucket.create("lease", b"1")

    async def test_each_partition_gets_the_jobs_of_its_models(self, own_bus: Bus) -> None:
        first, second = [
            await own_bus.consume_jobs(max_outstanding=10, partition=partition) for partition in divide(2)
        ]
        models = [f"model.{i}" for i in range(12)]
        of = [[model for model in models if partition.has(model)] for partition in divide(2)]
        assert all(of)
        await queue(own_bus, *models)
        assert [job.data.decode() for job in await take(first, len(of[0]))] == of[0]
        assert [job.data.decode() for job in await take(second, len(of[1]))] == of[1]

    async def test_a_partition_is_taken_over_without_touching_the_other(self, own_bus: Bus) -> None:
        mine, theirs = divide(2)
        a = next(name for name in string.ascii_lowercase if mine.has(name))
        b = next(name for name in string.ascii_lowercase if theirs.has(name))
        old = await own_bus.consume_jobs(max_outstanding=10, partition=mine)
        other = await own_bus.consume_jobs(max_outstanding=10, partition=theirs)
        await queue(own_bus, a)
        await take(old, 1)
        new = await own_bus.consume_jobs(max_outstanding=10, partition=mine)
        assert [job.data.decode() for job in await take(new, 1)] == [a]
        with pytest.raises(Unavailable) as caught:
            await take(old, 1)
        assert caught.value.reason == "CONSUMER_TAKEN_OVER"
        await queue(own_bus, b)
        assert [job.data.decode() for job in await take(other, 1)] == [b]

    @pytest.mark.parametrize("other", [Partition(), Partition(0, 3)])
    async def test_two_divisions_at_once_are_refused_naming_the_variable(
        self, own_bus: Bus, other: Partition
    ) -> None:
        await own_bus.consume_jobs(max_outstanding=10, partition=Partition(0, 2))
        with pytest.raises(InvalidArgument) as caught:
            await own_bus.consume_jobs(max_outstanding=10, partition=other)
        assert caught.value.field == "INFERFLUX_SCHEDULER_PARTITIONS"
        assert "INFERFLUX_SCHEDULER_PARTITIONS" in caught.value.message

    async def test_of_many_that_take_over_at_once_at_most_one_goes_on(self, own_bus: Bus) -> None:
        attempts = await asyncio.gather(
            *(own_bus.consume_jobs(max_outstanding=10) for _ in range(6)), return_exceptions=True
        )
        made = [one for one in attempts if isinstance(one, JobConsumer)]
        assert all(isinstance(one, JobConsumer | Unavailable) for one in attempts)
        readers = [asyncio.create_task(anext(one)) for one in made]
        await queue(own_bus, "a")
        async with asyncio.timeout(10):  # a pull that met no consumer ends by silence
            await asyncio.wait(readers)
        winners = [reader for reader in readers if reader.exception() is None]
        assert len(winners) == 1

    async def test_a_reconnect_callback_that_nats_fails_runs_again(
        self, server: Server, own_bus: Bus
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
        await kill(server, own_bus)
        await server.start()
        await until(lambda: "second" in calls)
        assert calls == ["first", "first", "second"]

    async def test_the_token_stream_exists_again_before_reconnect_callbacks_run(
        self, server: Server, own_bus: Bus
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
        await kill(server, own_bus)
        await server.start()

        assert await asyncio.wait_for(replayed, 10) == [b"again"]

    async def test_a_failing_reconnect_callback_does_not_keep_the_next_from_running(
        self, server: Server, own_bus: Bus
    ) -> None:
        async def fail() -> None:
            raise RuntimeError("a defect")

        own_bus.on_reconnect(fail)
        await reconnect(server, own_bus)

    async def test_token_subscriptions_go_on_after_a_restart_and_say_that_messages_were_dropped(
        self, server: Server, own_bus: Bus
    ) -> None:
        stream = await own_bus.open_stream(TOKENS)
        await own_bus.publish(TOKENS, b"1")
        assert await stream.next(2) == b"1"
        assert not stream.dropped

        await reconnect(server, own_bus)

        assert stream.dropped
        assert not stream.dropped  # asking clears it
        await own_bus.publish(TOKENS, b"2")
        assert await stream.next(2) == b"2"

    async def test_a_reader_waiting_over_a_restart_gets_what_is_published_after_it(
        self, server: Server, own_bus: Bus
    ) -> None:
        stream = await own_bus.open_stream(TOKENS)

        async def read() -> bytes:
            while True:
                try:
                    return await stream.next(10)
                except TimeoutError:
                    assert stream.dropped  # woken by the loss, not by the clock

        waiting = asyncio.create_task(read())
        await reconnect(server, own_bus)
        await own_bus.publish(TOKENS, b"late")
        assert await waiting == b"late"

    async def test_handlers_serve_again_after_a_restart(self, server: Server, own_bus: Bus) -> None:
        async def echo(message: Message) -> None:
            await message.respond(message.data)

        await own_bus.serve("test.echo", echo)
        await reconnect(server, own_bus)
        assert await own_bus.request("test.echo", b"hello", timeout_s=2) == b"hello"

    async def test_a_subscription_closed_while_away_stays_closed(self, server: Server, own_bus: Bus) -> None:
        stream = await own_bus.open_stream(TOKENS)
        await own_bus.flush()
        await kill(server, own_bus)
        stream.close()
        opened_while_away = await own_bus.open_stream(TOKENS)
        await server.start()
        await own_bus.flush(10)
        await own_bus.publish(TOKENS, b"x")
        assert await opened_while_away.next(2) == b"x"
        assert stream.next_nowait() is None

    async def test_messages_published_while_away_are_kept_and_sent(
        self, server: Server, own_bus: Bus
    ) -> None:
        stream = await own_bus.open_stream(TOKENS)
        await kill(server, own_bus)
        for number in range(100):
            await own_bus.publish(TOKENS, str(number).encode())
        await server.start()
        assert [await stream.next(10) for _ in range(100)] == [str(number).encode() for number in range(100)]

    async def test_publishing_into_a_full_buffer_while_away_is_refused_at_once(
        self, server: Server, own_bus: Bus
    ) -> None:
        await kill(server, own_bus)
        with pytest.raises(Unavailable) as caught:  # noqa: PT012 - which one is refused is not the point
            for _ in range(100):
                await own_bus.publish(TOKENS, b"x" * 100_000)
        assert caught.value.reason == "OUTBOUND_FULL"
        started = time.monotonic()
        for _ in range(100):
            with pytest.raises(Unavailable):
                await own_bus.publish(TOKENS, b"x")
        assert time.monotonic() - started < 0.5

    async def test_a_request_while_away_was_certainly_not_delivered(
        self, server: Server, own_bus: Bus
    ) -> None:
        await kill(server, own_bus)
        with pytest.raises(Unavailable) as caught:
            await own_bus.request("test.unserved", b"", timeout_s=5)
        assert caught.value.reason == "NOT_CONNECTED"

    async def test_a_request_whose_connection_breaks_ends_at_once_with_an_unknown_outcome(
        self, server: Server, own_bus: Bus
    ) -> None:
        asked = asyncio.Event()

        async def never_answer(message: Message) -> None:
            asked.set()

        await own_bus.serve("test.silent", never_answer)
        request = asyncio.create_task(own_bus.request("test.silent", b"", timeout_s=60))
        await asyncio.wait_for(asked.wait(), 5)
        started = time.monotonic()
        server.kill()
        with pytest.raises(DeadlineExceeded) as caught:
            await request
        assert caught.value.reason == "CONNECTION_LOST"
        assert time.monotonic() - started < 5

    async def test_jobs_outlive_a_restart_and_none_is_handed_out_twice(
        self, server: Server, own_bus: Bus
    ) -> None:
        consumer = await own_bus.consume_jobs(max_outstanding=100)
        for number in range(10):
            assert await own_bus.enqueue(JOBS, str(number).encode(), msg_id=str(number))
        jobs = await take(consumer, 10)
        for job in jobs[:5]:
            await job.ack()
        await own_bus.flush()

        await reconnect(server, own_bus)

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
        self, server: Server, own_bus: Bus
    ) -> None:
        consumer = await own_bus.consume_jobs(max_outstanding=8)
        for round_number in range(3):
            await reconnect(server, own_bus)
            started = time.monotonic()
            assert await own_bus.enqueue(JOBS, b"job", msg_id=str(round_number))
            (job,) = await take(consumer, 1)
            await job.ack()
            assert time.monotonic() - started < 1

    async def test_acknowledging_while_away_is_done_later(self, server: Server, own_bus: Bus) -> None:
        consumer = await own_bus.consume_jobs(max_outstanding=8)
        assert await own_bus.enqueue(JOBS, b"job", msg_id="1")
        (job,) = await take(consumer, 1)
        await kill(server, own_bus)
        await job.ack()
        await server.start()
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
        self, server: Server, own_bus: Bus
    ) -> None:
        consumer = await own_bus.consume_jobs(max_outstanding=1000)
        gateway = await server.connect(name="gateway")
        seen: list[bytes] = []
        is_accepted: dict[bytes, bool] = {}

        async def consume() -> None:
            async for job in consumer:
                seen.append(job.data)
                await job.ack()

        async def submit(number: int) -> None:
            name = str(number).encode()
            is_accepted[name] = bool(await gateway.enqueue(JOBS, name, msg_id=str(number)))

        async def submit_all() -> None:
            async with asyncio.TaskGroup() as submissions:
                for number in range(300):
                    submissions.create_task(submit(number))
                    await asyncio.sleep(0.002)

        consuming = asyncio.create_task(consume())
        submitting = asyncio.create_task(submit_all())
        await until(lambda: len(seen) > 50)
        await kill(server, gateway)
        await server.start()
        await submitting
        assert all(is_accepted.values())
        await until(lambda: len(seen) >= 300)
        await own_bus.flush()
        consuming.cancel()
        await asyncio.wait([consuming])
        assert sorted(seen) == sorted(is_accepted)
        await gateway.close()
