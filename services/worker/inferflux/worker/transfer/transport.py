"""Interfaces of what carries KV state, and its server's side that all carriers share."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.process.tasks import Background
from inferflux.v1 import scheduler_pb2, worker_pb2

from .channel import Carried, KvChannel
from .packets import Failed, check_wish, last_packet
from .piece_files import PieceFolder

# Without progress for this time a transfer is given up, by either end.
STALL_S = 10.0
# The engine has at most 64 MiB of pieces lie unread: never so much.
_SENT_BYTES, _SENT_PACKETS = 1 << 30, 4096


class KvTransport(Protocol):
    """One way to fetch KV state from another worker.

    Attributes:
        name: one word, for metrics.
    """

    name: str

    def reaches(self, source: scheduler_pb2.KvSource) -> bool:
        """True if that worker can be asked this way."""
        ...

    async def fetch(
        self, source: scheduler_pb2.KvSource, wish: worker_pb2.KvWish, into: KvChannel, folder: PieceFolder
    ) -> None:
        """Put all that is sent for a wish into a channel, up to the last packet.

        Pieces are files of `folder` then, checked as far as the carrier can.

        Raises:
            Failed: it broke off; with reason `lost` it may be asked again, for what has not come.
            ChannelClosed: the channel was closed.
        """
        ...


Answer = Callable[[worker_pb2.KvWish, KvChannel], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Door:
    """A worker that can be asked for KV state.

    Attributes:
        answer: puts packets for a wish into a channel, the last one too, whatever happens; when it is
            cancelled no more is wanted.
        folder: where its pieces are.
        on_sent: given what carries a piece, and its bytes.
        ticket: known to those who may ask.
    """

    incarnation: str
    answer: Answer
    folder: Callable[[], PieceFolder | None]
    on_sent: Callable[[str, int], None]
    ticket: str = field(default_factory=lambda: secrets.token_urlsafe(32))


class Doors:
    """The workers of this process that can be asked."""

    def __init__(self) -> None:
        self._doors: dict[str, Door] = {}
        self._sendings: set[Sending] = set()
        self._sent = asyncio.Event()

    def open(self, door: Door) -> None:
        self._doors[door.incarnation] = door

    def close(self, door: Door) -> None:
        self._doors.pop(door.incarnation, None)

    def has(self, incarnation: str) -> bool:
        return incarnation in self._doors

    def know(self, ticket: str) -> bool:
        """True if the ticket is of one of them."""
        return any(is_ticket(ticket, door.ticket) for door in self._doors.values())

    async def until_sent(self, door: Door, limit_s: float) -> None:
        """Return when all that a worker was asked for is on its way, or after `limit_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while any(sending.is_of(door) for sending in self._sendings):
                    self._sent.clear()
                    await self._sent.wait()

    def _on_sent(self, sending: Sending) -> None:
        self._sendings.discard(sending)
        self._sent.set()

    def begin(self, wish: worker_pb2.KvWish, carrier: str) -> Sending:
        """Begin to answer a wish.

        Args:
            carrier: that brought it.

        Raises:
            Failed: it is refused.
        """
        asked = [door for door in self._doors.values() if is_ticket(wish.ticket, door.ticket)]
        if not asked:
            raise Failed("refused", "the ticket is not of this worker")
        folder = asked[0].folder()
        if folder is None:
            raise Failed("refused", "this worker has no exchange")
        try:
            check_wish(wish)
        except InvalidArgument as error:
            raise Failed("refused", error.message) from None
        sending = Sending(asked[0], wish, folder, carrier, self._on_sent)
        self._sendings.add(sending)
        return sending


class Sending:
    """An answer on its way. Its pieces are removed when it ends early, but for those taken over.

    Attributes:
        folder: where the pieces are.
    """

    def __init__(
        self,
        door: Door,
        wish: worker_pb2.KvWish,
        folder: PieceFolder,
        carrier: str,
        on_close: Callable[[Sending], None],
    ) -> None:
        self.folder = folder
        self._on_close = on_close
        self._door = door
        self._carrier = carrier
        self._channel = KvChannel(_SENT_BYTES, _SENT_PACKETS)
        self._background = Background()
        self._background.start(self._answer(door, wish))
        self._unread: list[str] = []
        self._is_over = False

    def is_of(self, door: Door) -> bool:
        """True if that worker answers."""
        return self._door is door

    async def _answer(self, door: Door, wish: worker_pb2.KvWish) -> None:
        why = "the source stopped"
        try:
            await door.answer(wish, self._channel)
            why = ""
        except Failed as error:
            why = str(error)
        finally:
            # Without effect where the last packet is there already: nothing is taken out after it.
            self._channel.offer(last_packet(wish, why))

    async def next(self) -> Carried:
        """The next packet.

        Raises:
            ChannelClosed: the one who asked is gone.
        """
        carried = await self._channel.get()
        packet = carried.packet
        if packet.name:
            self._unread.append(packet.name)
        return carried

    def sent(self, packet: worker_pb2.KvPacket, *, is_read: bool) -> None:
        """A packet is on its way.

        Args:
            is_read: its bytes are too, and its file is not needed any more.
        """
        self._is_over = packet.is_last
        self._channel.release(packet.n_bytes)
        if packet.n_bytes:
            self._door.on_sent(self._carrier, packet.n_bytes)
        if is_read and packet.name:
            self.folder.release(packet.name)
            self._unread.remove(packet.name)

    def give_up(self) -> None:
        """Wake `next`: the one who asked is gone."""
        self._channel.close("the one who asked is gone")

    async def close(self) -> None:
        """End it."""
        self._on_close(self)
        await self._background.close()
        left = [packet.name for packet in self._channel.drain()]
        for name in left if self._is_over else [*left, *self._unread]:
            self.folder.remove(name)


def is_ticket(given: str, expected: str) -> bool:
    """True if the ticket is the right one; takes as long where it is not."""
    return hmac.compare_digest(given.encode(), expected.encode())
