"""Packets of KV state on a stream."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from inferflux.v1 import worker_pb2
from inferflux.worker.transfer import wire
from inferflux.worker.transfer.channel import KvChannel
from inferflux.worker.transfer.packets import MAX_PACKET_BYTES, Failed, PacketOrder
from inferflux.worker.transfer.piece_files import PieceFolder


def on_stream(**fields: object) -> bytes:
    data = worker_pb2.KvPacket(tenant="t", request_id="r", epoch=3, **fields).SerializeToString()  # type: ignore[arg-type]
    return struct.pack(">I", len(data)) + data


async def test_a_flood_of_packets_without_a_piece_ends_the_transfer(tmp_path: Path) -> None:
    order = PacketOrder(worker_pb2.KvWish(tenant="t", request_id="r", epoch=3))
    reader, channel = asyncio.StreamReader(), KvChannel(follow=order.follow, check=order.check)
    reader.feed_data(on_stream(is_caught_up=True) * 1000 + on_stream(is_last=True))
    with pytest.raises(Failed, match="more than 16 packets without a piece"):
        await wire.receive(reader, channel, PieceFolder(tmp_path, "", 0), takes_names=False)


async def test_a_message_that_stalls_half_way_is_too_late_and_not_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "STALL_S", 0.01)
    reader = asyncio.StreamReader()
    reader.feed_data(on_stream()[:-1])
    with pytest.raises(Failed) as failure:
        await wire.read_message(reader, worker_pb2.KvPacket, MAX_PACKET_BYTES)
    assert failure.value.reason == "timeout"
