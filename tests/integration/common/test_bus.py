"""The bus against a real nats-server."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from harness.bus_contract import JOBS, TOKENS, assert_empty, take
from harness.servers import ServerProcess

from inferflux.cli.stack.servers import free_port
from inferflux.common.bus import Bus, Message, StreamLimits
from inferflux.common.bus.objects import ObjectBucket
from inferflux.common.bus.pinned_nats import decode_headers, encode_headers
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import Internal, InvalidArgument, NotFound, Unavailable
from inferflux.common.process import metrics


@pytest.fixture
async def own_bus(private_nats: ServerProcess) -> AsyncIterator[Bus]:
    """A bus with streams of its own."""
    bus = await Bus.connect(private_nats.url, name="test")
    await bus.ensure_streams(StreamLimits())
    yield bus
    await bus.close()


# Connecting


async def test_connecting_without_a_server_names_the_address_and_the_variable_but_no_password() -> None:
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


async def test_a_server_that_is_away_at_the_start_is_named_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    url = f"nats://me:secret@127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable):
        await Bus.connect(url, name="t", connect_timeout_s=1)
    said = "".join(capfd.readouterr())
    assert said.count("cannot connect to NATS yet") == 1
    assert url.replace("me:secret@", "") in said
    assert "secret" not in said
    assert "lost the connection" not in said


async def test_the_second_of_several_urls_will_do(nats_url: str) -> None:
    bus = await Bus.connect(f"nats://127.0.0.1:{free_port()}, {nats_url}", name="t")
    await bus.flush()
    await bus.close()


# Publish and request


async def test_a_burst_larger_than_the_outbound_buffer_is_sent_whole(bus: Bus) -> None:
    stream = await bus.open_stream("test.burst")
    for number in range(100):
        await bus.publish("test.burst", str(number).encode() + b"x" * 50_000)
        while stream.next_nowait() is not None:
            pass
    await bus.flush()
    stream.close()


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
    odd = [b"\xff\xfe", "a\u2003b".encode(), b"_INBOX." + b"x" * 3000]
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


async def test_one_message_larger_than_the_limit_still_arrives(bus: Bus) -> None:
    stream = await bus.open_stream("test.large")
    await bus.publish("test.large", b"x" * 3_000_000)
    assert len(await stream.next(5)) == 3_000_000
    assert not stream.dropped
    stream.close()


# Streams


async def test_making_the_streams_twice_and_at_once_by_many_is_fine(private_nats: ServerProcess) -> None:
    buses = [await Bus.connect(private_nats.url, name=f"t{number}") for number in range(6)]
    limits = StreamLimits()
    await asyncio.gather(*(bus.ensure_streams(limits) for bus in buses))
    await asyncio.gather(
        *(bus.ensure_streams(replace(limits, queue_limit=10 + n)) for n, bus in enumerate(buses))
    )
    await asyncio.gather(*(bus.close() for bus in buses))


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


async def test_a_consumer_whose_durable_was_deleted_makes_it_again(own_bus: Bus) -> None:
    consumer = await own_bus.consume_jobs(max_outstanding=10)
    await own_bus._link.api(f"CONSUMER.DELETE.{subjects.JOBS_STREAM}.{subjects.SCHEDULER_CONSUMER}")
    await own_bus.enqueue(JOBS, b"x", msg_id="1")
    (job,) = await take(consumer, 1)
    assert job.data == b"x"


async def test_a_pull_that_expires_is_made_again(own_bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferflux.common.bus.jobs._EXPIRES_S", 0.3)
    monkeypatch.setattr("inferflux.common.bus.jobs._HEARTBEAT_S", 0.1)
    consumer = await own_bus.consume_jobs(max_outstanding=10)
    await assert_empty(consumer)
    await assert_empty(consumer)
    await own_bus.enqueue(JOBS, b"x", msg_id="1")
    (job,) = await take(consumer, 1, timeout_s=1)
    await job.ack()


# The object store


async def test_an_object_put_again_is_replaced_and_leaves_nothing_behind(own_bus: Bus) -> None:
    await own_bus.put_object("name", b"1" * 300_000)
    await own_bus.put_object("name", b"2" * 300_000)
    await own_bus.put_object("name", b"2" * 300_000)
    assert await own_bus.get_object("name") == b"2" * 300_000
    info = await own_bus._link.api(f"STREAM.INFO.OBJ_{subjects.TOKENIZERS_BUCKET}")
    assert info["state"]["messages"] == 3 + 1  # chunks and the description


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
