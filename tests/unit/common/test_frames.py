"""Messages between a process and its child: whole, in order, and an end that both sides notice."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from inferflux.common.process.child.frames import ChildEnd, ParentEnd, pack
from inferflux.v1 import tokens_pb2

Chunk = tokens_pb2.TokenChunk


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


async def test_messages_of_any_size_cross_both_ways_in_order(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sent = [Chunk(text="x" * size) for size in (0, 1, 1 << 18, (1 << 18) + 1, 3 << 20)]

    def echo() -> None:
        child = ChildEnd(pair[1], Chunk.FromString)
        for _ in sent:
            child.send(child.receive())
        pair[1].close()

    thread = threading.Thread(target=echo)
    thread.start()
    parent = await ParentEnd.open(pair[0], Chunk.FromString)
    for chunk in sent:
        parent.send(chunk)
    assert [chunk async for chunk in parent.messages()] == sent
    await asyncio.to_thread(thread.join)
    parent.close()


def test_all_that_arrived_is_given_at_once_and_a_begun_message_is_waited_for(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    child = ChildEnd(pair[1], Chunk.FromString)
    assert list(child.arrived(0.0)) == []
    last = pack(Chunk(text="last"))
    pair[0].sendall(pack(Chunk(text="first")) + last[:3])
    threading.Timer(0.05, pair[0].sendall, [last[3:]]).start()
    assert [chunk.text for chunk in child.arrived(None)] == ["first", "last"]
    assert list(child.arrived(0.0)) == []


@pytest.mark.parametrize("half_sent", [b"", b"\x05\x00", pack(Chunk(text="half"))[:-1]])
def test_a_closed_end_is_told_even_within_a_message(
    pair: tuple[socket.socket, socket.socket], half_sent: bytes
) -> None:
    child = ChildEnd(pair[1], Chunk.FromString)
    pair[0].sendall(half_sent)
    pair[0].close()
    with pytest.raises(EOFError):
        list(child.arrived(None))
    with pytest.raises(EOFError):
        child.receive()
