"""The queue of packets of KV state, and the order that packets come in."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.v1 import worker_pb2
from inferflux.worker.transfer import wire
from inferflux.worker.transfer.channel import ChannelClosed, KvChannel
from inferflux.worker.transfer.packets import Failed, PacketOrder

WISH = worker_pb2.KvWish(tenant="t", request_id="r", epoch=3)


def piece(first: int, n_past: int, n_bytes: int = 10, **fields: object) -> worker_pb2.KvPacket:
    packet = worker_pb2.KvPacket(
        tenant="t", request_id="r", epoch=3, first=first, n_past=n_past, n_bytes=n_bytes
    )
    for name, value in fields.items():
        setattr(packet, name, value)
    return packet


def control(**fields: object) -> worker_pb2.KvPacket:
    return piece(0, 0, 0, **fields)


async def is_blocked(task: asyncio.Task[object]) -> bool:
    for _ in range(5):
        await asyncio.sleep(0)
    return not task.done()


@given(sizes=st.lists(st.integers(0, 300), max_size=40), most=st.integers(1, 250), count=st.integers(1, 5))
def test_all_pieces_come_in_order_and_never_more_lie_there_than_may(
    sizes: list[int], most: int, count: int
) -> None:
    async def run() -> list[int]:
        channel = KvChannel(most, count)
        came: list[int] = []

        async def produce() -> None:
            for i, size in enumerate(sizes):
                await channel.put(piece(i, i + 1, size))
                assert channel.n_bytes <= max(most, size, max(sizes))
            await channel.put(control(is_last=True))

        async def consume() -> None:
            while True:
                packet = (await channel.get()).packet
                assert channel.n_packets <= 2 * count + 1
                if packet.n_bytes:
                    came.append(packet.n_bytes)
                if channel.n_bytes % 2:
                    await asyncio.sleep(0)
                channel.release(packet.n_bytes)
                if packet.is_last:
                    return

        async with asyncio.timeout(10):
            await asyncio.gather(produce(), consume())
        assert channel.n_bytes == 0
        return came

    assert asyncio.run(run()) == [size for size in sizes if size]


async def test_a_piece_takes_room_until_it_is_released() -> None:
    channel = KvChannel(100)
    await channel.put(piece(0, 1, 60))
    assert (await channel.get()).packet.n_bytes == 60
    second = asyncio.create_task(channel.put(piece(1, 2, 60)))
    assert await is_blocked(second)
    channel.release(60)
    await second


async def test_a_piece_larger_than_all_room_passes_alone() -> None:
    channel = KvChannel(100)
    await channel.put(piece(0, 1, 1000))
    assert not channel.offer(piece(1, 2, 1))


async def test_control_passes_however_full_it_is_and_takes_one_place() -> None:
    channel = KvChannel(100, 1)
    await channel.put(piece(0, 1, 100))
    for _ in range(1000):
        await channel.put(control())
    await channel.put(control(is_caught_up=True))
    await channel.put(control(is_last=True))
    assert channel.n_packets == 2
    await channel.get()
    last = (await channel.get()).packet
    assert last.is_caught_up
    assert last.is_last


@pytest.mark.parametrize("closes", ["close", "drain"])
async def test_closing_wakes_who_puts(closes: str) -> None:
    channel = KvChannel(10)
    await channel.put(piece(0, 1, 10))
    blocked = asyncio.create_task(channel.put(piece(1, 2, 10)))
    assert await is_blocked(blocked)
    getattr(channel, closes)()
    with pytest.raises(ChannelClosed):
        await blocked
    assert not channel.offer(control(is_last=True))


async def test_closing_wakes_who_gets_after_what_is_there() -> None:
    channel = KvChannel()
    waiting = asyncio.create_task(channel.get())
    assert await is_blocked(waiting)
    channel.close("it is over")
    with pytest.raises(ChannelClosed, match="it is over"):
        await waiting
    full = KvChannel()
    await full.put(piece(0, 1))
    full.close()
    assert (await full.get()).packet.n_past == 1
    with pytest.raises(ChannelClosed):
        await full.get()


async def test_a_packet_that_may_not_come_is_refused_where_it_is_put() -> None:
    order = PacketOrder(WISH)
    channel = KvChannel(follow=order.follow, check=order.check)
    await channel.put(piece(0, 4))
    with pytest.raises(Failed, match="came again"):
        await channel.put(piece(0, 4))
    assert channel.n_packets == 1


def test_pieces_go_on_where_the_last_one_ended() -> None:
    order = PacketOrder(WISH)
    for packet in (
        piece(0, 256),
        piece(256, 300, is_caught_up=True),
        control(),
        piece(300, 310, is_last=True),
    ):
        order.follow(packet)
    assert order.n_past == 310
    assert order.is_over


def test_a_transfer_that_was_cut_goes_on_after_what_is_known() -> None:
    known = worker_pb2.KvWish()
    known.CopyFrom(WISH)
    known.known_tokens = 256
    order = PacketOrder(known)
    with pytest.raises(Failed, match="from 100 on, not from 256"):
        order.follow(piece(100, 300))
    order.follow(piece(256, 300))


def test_a_state_that_cannot_be_divided_comes_whole() -> None:
    order = PacketOrder(WISH)
    order.follow(piece(0, 256))
    order.follow(piece(0, 400))
    assert order.n_past == 400


@pytest.mark.parametrize(
    ("packets", "why"),
    [
        ([piece(0, 4), piece(0, 4)], "came again"),
        ([piece(0, 4), piece(2, 4)], "came again"),
        ([piece(4, 8)], "from 4 on, not from 0"),
        ([piece(0, 4), piece(8, 12)], "from 8 on, not from 4"),
        ([piece(4, 4)], r"\[4, 4\)"),
        ([piece(0, 2**31)], "positions"),
        ([piece(0, 4, 2**40)], "bytes"),
        ([piece(0, 4, epoch=2)], "another epoch"),
        ([piece(0, 4, tenant="u")], "another tenant"),
        ([control(request_id="q")], "another request_id"),
        ([control(is_last=True), control()], "after the last"),
    ],
)
def test_what_is_out_of_order_is_refused_by_name(packets: list[worker_pb2.KvPacket], why: str) -> None:
    order = PacketOrder(WISH)
    for packet in packets[:-1]:
        order.follow(packet)
    with pytest.raises(Failed, match=why) as refused:
        order.follow(packets[-1])
    assert refused.value.reason == "order"


@pytest.mark.parametrize(("ends", "reason"), [(False, "timeout"), (True, "lost")])
async def test_half_a_message_is_told_from_a_connection_that_was_cut(
    monkeypatch: pytest.MonkeyPatch, *, ends: bool, reason: str
) -> None:
    monkeypatch.setattr(wire, "STALL_S", 0.05)
    reader = asyncio.StreamReader()
    reader.feed_data(b"\0\0\0\x09half")
    if ends:
        reader.feed_eof()
    with pytest.raises(Failed) as failure:
        await wire.read_message(reader, worker_pb2.KvPacket, 100)
    assert failure.value.reason == reason
