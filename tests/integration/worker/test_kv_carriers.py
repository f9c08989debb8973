"""KV state between workers: what every carrier does, against a real nats-server."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from harness.certificates import Certificates
from harness.cuttable import CuttableProxy
from harness.kv_world import (
    CALLER,
    EPOCH,
    KEY,
    MOST_UNREAD_BYTES,
    REQUEST,
    TENANT,
    KvWorker,
    kv_worker,
    pieces_of,
    short_folder,
    until,
)
from harness.traces import trace
from harness.worker import batch_item

from inferflux.common.bus import Bus, StreamLimits, jetstream
from inferflux.common.contract import subjects
from inferflux.common.tracing.sdk import SdkTracer
from inferflux.v1 import engine_pb2, scheduler_pb2, worker_pb2
from inferflux.worker.transfer import over_nats, taking
from inferflux.worker.transfer.channel import KvChannel
from inferflux.worker.transfer.transport import Door

MIB = 1 << 20
CARRIERS = ["shm", "tcp", "tcp with TLS", "nats", "channel"]


@dataclass
class Pair:
    """A worker that has state, and one that wants it."""

    source: KvWorker
    taker: KvWorker
    carrier: str

    async def close(self) -> None:
        await self.taker.close()
        await self.source.close()


@pytest.fixture
async def kv_bus(bus: Bus) -> Bus:
    await bus.ensure_streams(StreamLimits())
    return bus


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.made(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=CARRIERS)
async def pair(
    request: pytest.FixtureRequest, kv_bus: Bus, certificates: Certificates
) -> AsyncIterator[Pair]:
    async with pair_of(request.param, kv_bus, certificates) as made:
        yield made


class pair_of:  # noqa: N801 - it is used as a function
    """A pair of workers: of one exchange where the carrier needs that, else of two."""

    def __init__(self, carrier: str, bus: Bus, certificates: Certificates) -> None:
        self._carrier = carrier
        self._bus = bus
        self._tls = certificates.server("worker", is_mutual=True) if "TLS" in carrier else None
        self._folder = short_folder()

    async def __aenter__(self) -> Pair:
        root = await self._folder.__aenter__()
        name = self._carrier.partition(" ")[0]
        is_shared = name in ("shm", "channel")
        source = await kv_worker(self._bus, root / "a", name, tls=self._tls)
        taker = await kv_worker(self._bus, root / ("a" if is_shared else "b"), name, tls=self._tls)
        if name == "channel":
            taker.process.doors._doors = source.process.doors._doors
        self._pair = Pair(source, taker, self._carrier)
        return self._pair

    async def __aexit__(self, *error: object) -> None:
        await self._pair.close()
        await self._folder.__aexit__(None, None, None)


async def objects(bus: Bus) -> int:
    info = await bus._link.api(f"STREAM.INFO.{subjects.KV_STREAM}")
    return int(info["state"]["messages"])


async def until_nothing_is_left(pair: Pair, bus: Bus) -> None:
    """No files, no objects, and no request that waits."""
    for worker in (pair.source, pair.taker):
        await until(lambda worker=worker: not worker.engine.files)
    assert pair.taker.engine.is_released
    if pair.carrier == "nats":
        async with asyncio.timeout(45):
            while await objects(bus):
                await asyncio.sleep(0.05)


def scripted(pair: Pair, answer: Callable[[KvChannel], Awaitable[None]]) -> scheduler_pb2.KvSource:
    """A source that answers any wish in this way."""

    async def answering(_wish: worker_pb2.KvWish, out: KvChannel) -> None:
        await answer(out)

    transfers = pair.source.transfers
    door = replace(transfers._door, answer=answering)
    pair.source.process.doors.open(door)
    assert isinstance(door, Door)
    return pair.source.source


def packet(pair: Pair, first: int, n_past: int, **fields: object) -> worker_pb2.KvPacket:
    """A packet whose piece is a file of the source."""
    name = f"scripted-{secrets.token_hex(8)}"
    data = next(iter(pieces_of(1000, tokens=n_past)))
    path = pair.source.engine.folder / name
    path.write_bytes(replace(data, first=first, n_past=n_past).to_file())
    made = worker_pb2.KvPacket(
        tenant=TENANT, request_id=REQUEST, epoch=EPOCH, first=first, n_past=n_past, name=name
    )
    made.n_bytes = path.stat().st_size
    for field, value in fields.items():
        setattr(made, field, value)
    return made


async def test_a_whole_state_arrives_byte_for_byte(pair: Pair, kv_bus: Bus) -> None:
    pair.source.engine.pieces = sent = pieces_of(1, 1000, 0, 300_000, 3 * MIB, 77)
    pair.taker.take(pair.source.source)
    news = await pair.taker.until_told()
    assert not news.error
    assert (news.tenant, news.request_id, news.epoch) == (TENANT, REQUEST, EPOCH)
    await pair.taker.until_idle()
    assert news.tokens == sent[-1].n_past
    assert pair.taker.engine.got == sent
    assert len(pair.taker.told) == 1
    await until_nothing_is_left(pair, kv_bus)
    status = pair.taker.transfers.status()
    assert status is not None
    assert (status.done, status.failed) == (1, 0)
    assert status.bytes > 3 * MIB
    assert status.bytes_per_s > 0
    backend = {"backend": pair.carrier.partition(" ")[0]}
    value = pair.taker.registry.get_sample_value
    assert value("inferflux_kv_transfer_bytes_total", {**backend, "direction": "received"}) == status.bytes
    assert value("inferflux_kv_transfer_duration_ms_count", backend) == 1
    sent_bytes = pair.source.registry.get_sample_value(
        "inferflux_kv_transfer_bytes_total", {**backend, "direction": "sent"}
    )
    assert sent_bytes == status.bytes


async def test_hundreds_of_mebibytes_pass_while_little_lies_anywhere(pair: Pair, kv_bus: Bus) -> None:
    """One piece is larger than 100 MiB."""
    n_more = 2 if pair.carrier == "nats" else 12
    pair.source.engine.pieces = sent = pieces_of(*[8 * MIB] * n_more, 104 * MIB, 8 * MIB)
    most = 0

    async def measure() -> None:
        nonlocal most
        while True:
            most = max(most, sum(f.stat().st_size for f in pair.taker.engine.files if f.exists()))
            await asyncio.sleep(0.005)

    measuring = asyncio.create_task(measure())
    pair.taker.take(pair.source.source)
    news = await pair.taker.until_told()
    await pair.taker.until_idle()
    measuring.cancel()
    assert not news.error
    assert pair.taker.engine.got == sent
    assert pair.source.engine.most_unread <= 104 * MIB + 64
    assert most <= 104 * MIB + MOST_UNREAD_BYTES + 64
    await until_nothing_is_left(pair, kv_bus)


async def test_a_slow_reader_holds_the_source_up(pair: Pair, kv_bus: Bus) -> None:
    pair.source.engine.pieces = sent = pieces_of(*[4 * MIB] * (18 if pair.carrier == "nats" else 40))
    pair.taker.engine.may_read.clear()
    pair.taker.take(pair.source.source)
    await until(lambda: len(pair.taker.engine.imports) > 8)
    await asyncio.sleep(0.5)
    lying = sum(f.stat().st_size for f in pair.taker.engine.files)
    assert lying <= 2 * MOST_UNREAD_BYTES
    assert pair.source.engine.most_unread <= MOST_UNREAD_BYTES
    pair.taker.engine.may_read.set()
    news = await pair.taker.until_told()
    assert not news.error
    await pair.taker.until_idle()
    assert pair.taker.engine.got == sent
    await until_nothing_is_left(pair, kv_bus)


async def test_a_request_may_come_after_the_wish(pair: Pair) -> None:
    pair.source.engine.pieces = pieces_of(1000)
    pair.source.engine.epochs.clear()
    pair.taker.take(pair.source.source)
    await until(lambda: pair.source.transfers._exports._n_answered == 1)
    assert not pair.source.engine.exported
    pair.source.engine.epochs[KEY] = EPOCH
    pair.source.transfers.taken_up(worker_pb2.BatchItem())
    assert not (await pair.taker.until_told()).error
    assert pair.source.engine.exported[0].key == KEY


async def test_state_comes_piece_by_piece_while_it_is_computed(pair: Pair) -> None:
    pair.source.engine.pieces = pieces_of(1000, 1000, 1000)
    pair.source.engine.holds_back = 2
    pair.taker.take(pair.source.source)
    await until(lambda: len(pair.taker.engine.got) == 2)
    assert not pair.taker.told
    last = packet(pair, 512, 600)
    piece = engine_pb2.EnginePiece(
        id=pair.source.engine.exported[0].id,
        name=last.name,
        first=512,
        n_past=600,
        n_bytes=last.n_bytes,
        is_caught_up=True,
    )
    pair.source.engine.report(pieces=[piece])
    news = await pair.taker.until_told()
    assert (news.tokens, news.error) == (600, "")
    assert not pair.taker.engine.is_released  # more may come
    over = engine_pb2.EnginePiece(id=piece.id, is_last=True)
    pair.source.engine.report(pieces=[over])
    await pair.taker.until_idle()
    assert pair.taker.engine.is_released
    assert len(pair.taker.told) == 1


async def test_a_scheduler_that_asks_again_is_told_again(pair: Pair) -> None:
    async def answer(out: KvChannel) -> None:
        await out.put(packet(pair, 0, 256, is_caught_up=True))
        await asyncio.Event().wait()

    source = scripted(pair, answer)
    pair.taker.take(source)
    news = await pair.taker.until_told()
    pair.taker.take(source)  # of a new leader, or the event was lost
    await until(lambda: len(pair.taker.told) == 2)
    assert pair.taker.told == [news, news]
    assert len(pair.taker.engine.got) == 1


async def test_a_request_that_runs_on_at_the_source_is_not_followed_for_long(
    pair: Pair, kv_bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "_REST_S", 0.5)

    async def answer(out: KvChannel) -> None:
        for first in range(0, 1 << 20, 64):
            made = packet(pair, first, first + 64, is_caught_up=not first)
            if not out.offer(made):
                (pair.source.engine.folder / made.name).unlink()
                return
            await asyncio.sleep(0.05)

    pair.taker.take(scripted(pair, answer))
    news = await pair.taker.until_told()
    await pair.taker.until_idle()
    assert pair.taker.engine.got[-1].n_past > news.tokens
    await until_nothing_is_left(pair, kv_bus)


@pytest.mark.parametrize("is_near", [False, True], ids=["much is missing", "nearly all is here"])
async def test_a_state_that_is_not_wanted_any_more_is_not_fetched(
    pair: Pair, kv_bus: Bus, monkeypatch: pytest.MonkeyPatch, is_near: bool
) -> None:
    monkeypatch.setattr(taking, "_REST_S", 1000.0)
    pair.source.engine.pieces = pieces_of(1000, 1000)
    pair.source.engine.holds_back = 1
    pair.taker.take(pair.source.source, limit_ms=600_000)
    await until(lambda: len(pair.taker.engine.got) == 1)
    if is_near:
        piece = engine_pb2.EnginePiece(id=pair.source.engine.exported[0].id, is_caught_up=True)
        pair.source.engine.report(pieces=[piece])
        await pair.taker.until_told()
    pair.taker.drop(epoch=EPOCH - 1)  # of an earlier move
    assert KEY in pair.taker.transfers._takings
    for _ in range(2):
        pair.taker.drop()
    await until(lambda: pair.source.engine.over == [pair.source.engine.exported[0].id])
    await pair.taker.until_idle()
    await until(lambda: pair.taker.engine.is_released)
    await until_nothing_is_left(pair, kv_bus)
    assert len(pair.taker.told) == is_near  # none asks any more


async def test_a_state_that_is_wanted_again_is_fetched_again(pair: Pair) -> None:
    pair.source.engine.pieces = sent = pieces_of(1000, 1000)
    pair.source.engine.holds_back = 1
    pair.taker.take(pair.source.source)
    await until(lambda: len(pair.taker.engine.got) == 1)
    pair.source.engine.holds_back = None
    pair.taker.drop()
    pair.taker.take(pair.source.source)
    news = await pair.taker.until_told()
    assert (news.tokens, news.error) == (sent[-1].n_past, "")
    await pair.taker.until_idle()
    assert len(pair.taker.told) == 1


async def test_a_prefix_that_a_request_begins_with_is_fetched_on_when_an_earlier_move_ends(
    pair: Pair,
) -> None:
    pair.source.engine.pieces = sent = pieces_of(1000, 1000)
    pair.source.engine.holds_back = 1
    item = batch_item(REQUEST, prompt=[5, 6, 7], epoch=EPOCH + 1)
    item.request.tenant = TENANT
    item.state_from.source.CopyFrom(pair.source.source)
    pair.taker.transfers.taken_up(item)
    await until(lambda: len(pair.taker.engine.got) == 1)
    pair.taker.drop()
    assert KEY in pair.taker.transfers._takings
    rest = packet(pair, 256, 512)
    last = engine_pb2.EnginePiece(
        id=pair.source.engine.exported[0].id,
        name=rest.name,
        first=256,
        n_past=512,
        n_bytes=rest.n_bytes,
        is_last=True,
    )
    pair.source.engine.report(pieces=[last])
    await pair.taker.until_idle()
    assert [piece.n_past for piece in pair.taker.engine.got] == [piece.n_past for piece in sent]


async def test_a_source_ends_its_export_when_the_taker_is_gone(pair: Pair, kv_bus: Bus) -> None:
    pair.source.engine.pieces = pieces_of(1000, 1000)
    pair.source.engine.holds_back = 1
    pair.taker.take(pair.source.source)
    await until(lambda: len(pair.taker.engine.got) == 1)
    await pair.taker.transfers.close()
    await until(lambda: pair.source.engine.over == [pair.source.engine.exported[0].id])
    await until_nothing_is_left(pair, kv_bus)


async def test_a_taker_lets_its_request_go_when_the_source_is_gone(pair: Pair, kv_bus: Bus) -> None:
    pair.source.engine.pieces = sent = pieces_of(1000, 1000)
    pair.source.engine.holds_back = 1
    pair.taker.take(pair.source.source)
    await until(lambda: len(pair.taker.engine.got) == 1)
    await pair.source.transfers.close()
    await pair.source.process.aclose()
    news = await pair.taker.until_told()
    assert news.error
    assert news.tokens == sent[0].n_past
    await pair.taker.until_idle()
    await until_nothing_is_left(pair, kv_bus)


async def test_an_engine_that_dies_ends_what_it_sends(pair: Pair, kv_bus: Bus) -> None:
    pair.source.engine.pieces = pieces_of(1000, 1000)
    pair.source.engine.holds_back = 1
    pair.taker.take(pair.source.source)
    await until(lambda: len(pair.taker.engine.got) == 1)
    pair.source.transfers.on_engine_death()
    assert "engine died" in (await pair.taker.until_told()).error
    await pair.taker.until_idle()
    await until_nothing_is_left(pair, kv_bus)


async def test_an_engine_that_dies_ends_what_it_takes(pair: Pair, kv_bus: Bus) -> None:
    pair.source.engine.pieces = pieces_of(1000, 1000)
    pair.taker.engine.may_read.clear()
    pair.taker.take(pair.source.source)
    await until(lambda: len(pair.taker.engine.imports) >= 3)
    await pair.taker.engine.close()
    pair.taker.transfers.on_engine_death()
    assert "engine died" in (await pair.taker.until_told()).error
    await pair.taker.until_idle()
    await until_nothing_is_left(pair, kv_bus)


async def test_a_wrong_ticket_is_refused(pair: Pair) -> None:
    source = pair.source.source
    source.ticket = "guessed"
    pair.source.engine.pieces = pieces_of(1000)
    pair.taker.take(source)
    assert "ticket" in (await pair.taker.until_told()).error
    await pair.taker.until_idle()
    assert pair.taker.engine.is_released
    assert not pair.source.engine.exported


async def test_another_model_is_refused(pair: Pair) -> None:
    pair.taker.engine.digest = "other"
    pair.taker.take(pair.source.source)
    assert "another file" in (await pair.taker.until_told()).error
    assert not pair.source.engine.exported


async def test_an_old_epoch_is_refused(pair: Pair) -> None:
    pair.source.engine.epochs[KEY] = 5
    pair.taker.take(pair.source.source, epoch=4)
    assert "epoch 4 is outdated: 5 is here" in (await pair.taker.until_told()).error
    await pair.taker.until_idle()
    assert pair.taker.engine.is_released
    assert not pair.source.engine.exported


async def test_a_state_that_does_not_come_is_given_up_in_time(pair: Pair) -> None:
    pair.source.engine.pieces = pieces_of(1000)
    pair.source.engine.holds_back = 0
    pair.taker.take(pair.source.source, limit_ms=200)
    assert "not here in time" in (await pair.taker.until_told()).error
    await pair.taker.until_idle()
    assert pair.taker.engine.is_released
    await until(lambda: len(pair.source.engine.over) == 1)


@pytest.mark.parametrize(
    ("ranges", "fields", "why"),
    [
        ([(0, 256), (0, 256)], {}, "came again"),
        ([(0, 256), (512, 768)], {}, "from 512 on, not from 256"),
        ([(0, 256), (256, 512)], {"epoch": 2}, "another epoch"),
        ([(0, 256), (256, 512)], {"request_id": "r2"}, "another request_id"),
        ([(0, 256), (256, 512)], {"n_bytes": 17}, "bytes|CRC|not taken|corrupt|early"),
    ],
)
async def test_a_packet_that_is_wrong_ends_the_transfer_by_name(
    pair: Pair, kv_bus: Bus, ranges: list[tuple[int, int]], fields: dict[str, object], why: str
) -> None:
    sent = asyncio.Event()

    async def answer(out: KvChannel) -> None:
        for i, (first, n_past) in enumerate(ranges):
            made = packet(pair, first, n_past, **(fields if i else {}))
            await out.put(made)
        sent.set()
        await asyncio.Event().wait()

    pair.taker.take(scripted(pair, answer))
    news = await pair.taker.until_told()
    await sent.wait()
    assert any(word in news.error for word in why.split("|")), news.error
    await pair.taker.until_idle()
    await until_nothing_is_left(pair, kv_bus)


async def test_a_piece_that_is_damaged_at_the_source_is_not_taken(pair: Pair, kv_bus: Bus) -> None:
    async def answer(out: KvChannel) -> None:
        made = packet(pair, 0, 256)
        path = pair.source.engine.folder / made.name
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        await out.put(made)
        await asyncio.Event().wait()

    pair.taker.take(scripted(pair, answer))
    assert "corrupt" in (await pair.taker.until_told()).error
    await pair.taker.until_idle()
    assert not pair.taker.engine.got
    await until_nothing_is_left(pair, kv_bus)


async def test_what_is_here_already_is_not_sent(pair: Pair, kv_bus: Bus) -> None:
    pair.source.engine.pieces = sent = pieces_of(1000, 1000, 1000)
    pair.taker.engine.cached = 256
    pair.taker.take(pair.source.source, token_ids=b"\5\0\0\0", cache_scope="tenant/acme")
    news = await pair.taker.until_told()
    assert (news.tokens, news.error) == (768, "")
    await pair.taker.until_idle()
    asked = pair.taker.engine.imports[0]
    assert (asked.token_ids, asked.cache_scope) == (b"\5\0\0\0", "tenant/acme")
    assert pair.source.engine.exported[0].known_tokens == 256
    assert pair.taker.engine.got == sent[1:]
    await until_nothing_is_left(pair, kv_bus)


async def test_a_prefix_is_wished_for_by_its_tokens_and_its_scope(pair: Pair) -> None:
    pair.source.engine.pieces = sent = pieces_of(1000, 1000)
    item = batch_item("p1", prompt=[5, 6, 7])
    item.state_from.source.CopyFrom(pair.source.source)
    pair.taker.transfers.taken_up(item)
    await pair.taker.until_idle()
    export = pair.source.engine.exported[0]
    assert (export.key, export.token_ids) == ("", b"\5\0\0\0\6\0\0\0\7\0\0\0")
    assert pair.taker.engine.imports[0].token_ids == export.token_ids
    assert export.cache_scope == f"tenant/{item.request.tenant}"
    assert pair.taker.engine.got == sent
    assert pair.taker.told == []  # the scheduler waits for none
    assert pair.taker.engine.is_released


async def test_a_request_that_comes_does_not_fetch_again_what_was_fetched(pair: Pair) -> None:
    pair.source.engine.pieces = pieces_of(1000)
    pair.taker.take(pair.source.source)
    pair.taker.take(pair.source.source)
    await pair.taker.until_told()
    await pair.taker.until_idle()
    item = batch_item(REQUEST)
    item.request.tenant = TENANT
    item.state_from.source.CopyFrom(pair.source.source)
    item.state_from.epoch = EPOCH
    pair.taker.transfers.taken_up(item)
    assert pair.taker.engine.is_released
    await pair.taker.until_idle()
    assert len(pair.source.engine.exported) == 1


async def test_a_request_whose_state_cannot_be_fetched_waits_for_nothing(pair: Pair) -> None:
    item = batch_item(REQUEST)
    item.request.tenant = TENANT
    item.state_from.source.CopyFrom(scheduler_pb2.KvSource(worker_id="gone", incarnation="gone"))
    item.state_from.epoch = EPOCH
    pair.taker.transfers.taken_up(item)
    await pair.taker.until_idle()
    assert pair.taker.engine.imports
    assert pair.taker.engine.is_released


@pytest.mark.parametrize("carrier", ["tcp", "tcp with TLS"])
async def test_a_connection_that_is_cut_goes_on_after_what_is_there(
    carrier: str, kv_bus: Bus, certificates: Certificates
) -> None:
    async with pair_of(carrier, kv_bus, certificates) as pair:
        pair.source.engine.pieces = sent = pieces_of(*[MIB] * 6)
        source = pair.source.source
        async with CuttableProxy(source.address, breaks_after=int(3.5 * MIB)) as proxy:
            source.address = proxy.endpoint
            pair.taker.take(source)
            news = await pair.taker.until_told()
            assert proxy.has_broken
        assert not news.error
        await pair.taker.until_idle()
        assert pair.taker.engine.got == sent
        known = [export.known_tokens for export in pair.source.engine.exported]
        assert known[0] == 0
        assert 0 < known[1] < sent[-1].n_past
        await until_nothing_is_left(pair, kv_bus)


async def test_a_last_piece_that_is_not_sent_is_removed(kv_bus: Bus, certificates: Certificates) -> None:
    async with pair_of("tcp", kv_bus, certificates) as pair:
        pair.source.engine.pieces = pieces_of(1000)
        wish = worker_pb2.KvWish(ticket=pair.source.source.ticket, tenant=TENANT, request_id=REQUEST)
        wish.epoch, wish.model_digest = EPOCH, pair.source.engine.digest
        sending = pair.source.process.doors.begin(wish, "tcp")
        assert (await sending.next()).packet.is_last
        assert pair.source.engine.files
        await sending.close()
        assert not pair.source.engine.files


async def test_a_byte_that_was_changed_on_the_way_is_noticed(kv_bus: Bus, certificates: Certificates) -> None:
    """By its checksum, before the engine has it."""
    async with pair_of("tcp", kv_bus, certificates) as pair:
        pair.source.engine.pieces = pieces_of(MIB)
        host, _, port = pair.source.source.address.rpartition(":")

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            up_reader, up_writer = await asyncio.open_connection(host, int(port))
            for _ in range(2):  # the hello, the wish
                length = await reader.readexactly(4)
                up_writer.write(length + await reader.readexactly(int.from_bytes(length)))
            n = 0
            while data := await up_reader.read(65536):
                changed = bytearray(data)
                if n < 500_000 <= n + len(data):
                    changed[500_000 - n] ^= 1
                n += len(data)
                writer.write(changed)
            writer.close()
            up_writer.close()

        server = await asyncio.start_server(pass_on, "127.0.0.1", 0)
        source = pair.source.source
        source.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        pair.taker.take(source)
        assert "CRC-32" in (await pair.taker.until_told()).error
        await pair.taker.until_idle()
        server.close()
        assert not pair.taker.engine.got
        await until_nothing_is_left(pair, kv_bus)


async def test_a_strangers_wish_is_not_read(kv_bus: Bus, certificates: Certificates) -> None:
    async with pair_of("tcp", kv_bus, certificates) as pair:
        host, _, port = pair.source.source.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        wish = worker_pb2.KvWish(ticket="guessed", token_ids=bytes(2000)).SerializeToString()
        writer.write(len(wish).to_bytes(4) + wish)
        async with asyncio.timeout(4):  # before it would be too late for any
            assert not await reader.read()
        writer.close()
        assert not pair.source.engine.exported


async def test_a_network_that_falls_silent_is_given_up(
    kv_bus: Bus, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "_REST_S", 0.3)
    async with pair_of("tcp", kv_bus, certificates) as pair:
        pair.source.engine.pieces = sent = pieces_of(1000, 1000)
        pair.source.engine.holds_back = 1
        source = pair.source.source
        async with CuttableProxy(source.address) as proxy:
            source.address = proxy.endpoint
            pair.taker.take(source, limit_ms=500)
            await until(lambda: len(pair.taker.engine.got) == 1)
            proxy.freeze()
            news = await pair.taker.until_told()
            assert "not here in time" in news.error
            assert news.tokens == sent[0].n_past
            await pair.taker.until_idle()
            assert pair.taker.engine.is_released


async def test_a_caller_without_a_certificate_is_refused(kv_bus: Bus, certificates: Certificates) -> None:
    async with pair_of("tcp with TLS", kv_bus, certificates) as pair:
        assert pair.source.source.is_tls
        carrier = pair.taker.transfers._carriers[0]
        carrier._files = certificates.client()  # type: ignore[attr-defined]
        pair.taker.take(pair.source.source)
        assert (await pair.taker.until_told()).error
        assert not pair.source.engine.exported


async def test_objects_of_a_taker_that_fell_silent_are_removed(
    kv_bus: Bus, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_nats, "STALL_S", 0.5)
    async with pair_of("nats", kv_bus, certificates) as pair:
        pair.source.engine.pieces = pieces_of(1000, 1000)
        wish = worker_pb2.KvWish(
            ticket=pair.source.source.ticket, tenant=TENANT, request_id=REQUEST, epoch=EPOCH
        )
        wish.model_digest = "digest"
        wish.limit_ms = 1000
        subject = subjects.worker_kv(pair.source.state.worker_id)
        headers = {over_nats._TRANSFER: "abc", over_nats._NUMBER: "1"}
        first = await kv_bus.request(subject, wish.SerializeToString(), timeout_s=5, headers=headers)
        again = await kv_bus.request(subject, wish.SerializeToString(), timeout_s=5, headers=headers)
        assert first == again  # the reply may have been lost
        assert await objects(kv_bus)
        await until_nothing_is_left(pair, kv_bus)
        assert len(pair.source.engine.over) <= 1


async def test_sockets_of_dead_workers_go(kv_bus: Bus, certificates: Certificates) -> None:
    async with pair_of("shm", kv_bus, certificates) as pair:
        folder = pair.source.root / "exchange" / "sockets"
        dead = folder / "dead"
        server = await asyncio.start_unix_server(lambda *_: None, dead)
        server.close()
        assert dead.exists()
        assert len([*folder.iterdir()]) == 3
        beside = pair.source.root.with_name("other") / "exchange" / "sockets"
        beside.mkdir(parents=True)
        beside.with_name("lock").touch()
        dead.rename(beside / "dead")
        dead = beside / "dead"
        third = await kv_worker(kv_bus, pair.source.root, "shm")
        assert not dead.exists()
        assert len([*folder.iterdir()]) == 3
        await third.close()
        exchange = pair.source.root / "exchange"
        await pair.close()
        assert [path.name for path in exchange.iterdir()] == ["lock"]


async def test_a_worker_that_leaves_sends_first_what_was_asked_for(pair: Pair) -> None:
    pair.source.engine.pieces = sent = pieces_of(*[MIB] * 20)
    pair.taker.take(pair.source.source)
    await until(lambda: bool(pair.source.engine.exported))
    await pair.source.transfers.finish(20)
    await pair.source.transfers.close()
    news = await pair.taker.until_told()
    assert not news.error
    await pair.taker.until_idle()
    assert pair.taker.engine.got == sent


async def test_a_transfer_is_in_the_trace_of_its_request(kv_bus: Bus, tmp_path: Path) -> None:
    tracer = SdkTracer("worker", path=str(tmp_path / "traces.jsonl"))
    async with short_folder() as root:
        source = await kv_worker(kv_bus, root / "a", "shm", tracer=tracer)
        taker = await kv_worker(kv_bus, root / "a", "shm", tracer=tracer)
        source.engine.pieces = sent = pieces_of(1000, 1000)
        taker.take(source.source)
        await taker.until_told()
        await taker.until_idle()
        await taker.close()
        await source.close()
    spans = await trace(tmp_path / "traces.jsonl", CALLER.trace_id, "kv.export", "kv.transfer", "kv.import")
    n_bytes = sum(len(piece.to_file()) for piece in sent)
    for span in spans.values():
        assert span["attributes"]["inferflux.kv.bytes"] == n_bytes
    assert spans["kv.transfer"]["attributes"]["inferflux.kv.backend"] == "shm"
    assert spans["kv.transfer"]["attributes"]["inferflux.kv.source"] == source.state.worker_id
    await tracer.close()


async def test_the_bucket_is_in_memory(kv_bus: Bus) -> None:
    assert await jetstream.exists(kv_bus._link, subjects.KV_STREAM)
    info = await kv_bus._link.api(f"STREAM.INFO.{subjects.KV_STREAM}")
    assert info["config"]["storage"] == "memory"
