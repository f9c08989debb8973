"""The queue of packets between what carries them and the engine."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from inferflux.v1 import worker_pb2

MOST_BYTES = 64 << 20
MOST_PACKETS = 64


class ChannelClosed(Exception):
    """Either end has closed the channel."""


class Carried(NamedTuple):
    """A packet on its way.

    Attributes:
        packet: its bytes, if there are any, are the file `name` of the folder of pieces.
        began_s: when it began to arrive, by the monotonic clock.
    """

    packet: worker_pb2.KvPacket
    began_s: float


class KvChannel:
    """Packets, first in, first out, from one that puts them to one that gets them.

    It holds at most `most_bytes` and `most_packets`, but for a single packet, which may be larger. The bytes
    of a packet count until they are released, not until it is taken out. Packets without bytes pass however
    full it is: one that follows another such is put together with it. Closing wakes both ends.

    Args:
        follow: given each packet as it is put; what it raises is raised from there.
        check: the same ahead of its bytes: it may be asked twice.
    """

    def __init__(
        self,
        most_bytes: int = MOST_BYTES,
        most_packets: int = MOST_PACKETS,
        *,
        follow: Callable[[worker_pb2.KvPacket], None] = lambda _: None,
        check: Callable[[worker_pb2.KvPacket], None] = lambda _: None,
    ) -> None:
        self.check = check
        self._follow = follow
        self._most_bytes = most_bytes
        self._most_packets = most_packets
        self._queue: deque[Carried] = deque()
        self._n_bytes = 0
        self._n_pieces = 0
        self._changed = asyncio.Event()
        self._why_closed: str | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes that are not released."""
        return self._n_bytes

    @property
    def n_packets(self) -> int:
        """Packets that were not taken out."""
        return len(self._queue)

    @property
    def is_closed(self) -> bool:
        return self._why_closed is not None

    def has_room(self, n_bytes: int) -> bool:
        """True if a packet of this size passes."""
        is_small = self._n_bytes + n_bytes <= self._most_bytes and self._n_pieces < self._most_packets
        return not n_bytes or not self._n_pieces or is_small

    async def until_room(self, n_bytes: int) -> None:
        """Return when a packet of this size passes.

        Raises:
            ChannelClosed: it is closed.
        """
        await self._until(lambda: self.is_closed or self.has_room(n_bytes))
        self._check_open()

    async def put(self, packet: worker_pb2.KvPacket, *, began_s: float | None = None) -> None:
        """Put a packet in, once it passes.

        Raises:
            ChannelClosed: it is closed.
        """
        await self.until_room(packet.n_bytes)
        self._add(packet, began_s)

    def offer(self, packet: worker_pb2.KvPacket) -> bool:
        """Put a packet in if it passes now; False if it does not, or the channel is closed."""
        if self.is_closed or not self.has_room(packet.n_bytes):
            return False
        self._add(packet, None)
        return True

    async def get(self) -> Carried:
        """The next packet. What was put in before it was closed still comes.

        Raises:
            ChannelClosed: it is closed, and nothing is left.
        """
        await self._until(lambda: self.is_closed or bool(self._queue))
        if not self._queue:
            self._check_open()
        return self._queue.popleft()

    def release(self, n_bytes: int) -> None:
        """The bytes of a packet that was taken out take room no more; 0: it had none."""
        if n_bytes:
            self._n_bytes -= n_bytes
            self._n_pieces -= 1
            self._changed.set()

    def close(self, why: str = "the other end has closed it") -> list[worker_pb2.KvPacket]:
        """Wake both ends; returns the packets that were not taken out, which still can be."""
        if self._why_closed is None:
            self._why_closed = why
        self._changed.set()
        return [carried.packet for carried in self._queue]

    def drain(self) -> list[worker_pb2.KvPacket]:
        """Close it, and take out all that is left."""
        left = self.close()
        self._queue.clear()
        for packet in left:
            self.release(packet.n_bytes)
        return left

    def _add(self, packet: worker_pb2.KvPacket, began_s: float | None) -> None:
        self._follow(packet)
        if packet.n_bytes:
            self._n_bytes += packet.n_bytes
            self._n_pieces += 1
        elif self._queue and not self._queue[-1].packet.n_bytes:
            last = self._queue[-1].packet
            last.is_caught_up |= packet.is_caught_up
            last.is_last |= packet.is_last
            last.error = last.error or packet.error
            return
        self._queue.append(Carried(packet, time.monotonic() if began_s is None else began_s))
        self._changed.set()

    def _check_open(self) -> None:
        if self._why_closed is not None:
            raise ChannelClosed(self._why_closed)

    async def _until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            self._changed.clear()
            await self._changed.wait()
