"""Carrier over NATS: pieces are objects in nats-server's memory, each there until it is taken.

The one who wants them asks for each packet: so no more lies there than is taken, and a worker replies once to
each message, as NATS lets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from dataclasses import dataclass, field

from inferflux.common.bus import Bus, Message, Subscription
from inferflux.common.contract import checks, subjects
from inferflux.common.contract.errors import DeadlineExceeded, InferFluxError, InvalidArgument, Unavailable
from inferflux.common.process import logs
from inferflux.common.process.tasks import Background
from inferflux.v1 import scheduler_pb2, worker_pb2

from .channel import ChannelClosed, KvChannel
from .packets import MAX_WISH_BYTES, Failed, last_packet
from .piece_files import PieceFolder
from .transport import STALL_S, Doors, Sending, is_ticket

# Headers of a question: which transfer it is of, and which packet is wanted.
_TRANSFER, _NUMBER = "Inferflux-Kv-Transfer", "Inferflux-Kv-Number"
_MOST_TRANSFERS = 32
# A question is answered within this time, if only to say that there is nothing yet.
_ANSWER_S = 3.0
_ASK_S = _ANSWER_S + 3.0
# The longest number that is read.
_MOST_DIGITS = 9

log = logs.get("worker.transfer")


@dataclass(slots=True, eq=False)
class _Session:
    """A transfer to another worker.

    Attributes:
        answered: the latest packet that was sent, and its number: it is sent again where it was lost.
        waiting: the next packet, which is waited for.
        stored: the object of the latest packet.
    """

    sending: Sending
    wish: worker_pb2.KvWish
    answered: bytes = b""
    number: int = 0
    waiting: asyncio.Task[worker_pb2.KvPacket] | None = None
    stored: str = ""
    is_over: bool = False
    asked_s: float = field(default_factory=time.monotonic)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class NatsServer:
    """Answers wishes that come over NATS."""

    def __init__(self, bus: Bus, worker_id: str, doors: Doors) -> None:
        self._bus = bus
        self._objects = bus.objects(subjects.KV_BUCKET)
        self._worker_id = worker_id
        self._doors = doors
        self._sessions: dict[str, _Session] = {}
        self._background = Background()
        self._served: Subscription | None = None

    async def listen(self) -> None:
        self._served = await self._bus.serve(subjects.worker_kv(self._worker_id), self._on_wish)
        self._background.start(self._sweep())

    async def close(self) -> None:
        if self._served is not None:
            await self._served.close()
        await self._background.close()
        for session in list(self._sessions.values()):
            await self._end(session)
        self._sessions.clear()

    async def _on_wish(self, message: Message) -> None:
        name, digits = message.headers.get(_TRANSFER, ""), message.headers.get(_NUMBER, "")
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
        if len(message.data) > MAX_WISH_BYTES or not is_number:
            raise InvalidArgument("no question for a packet of KV state", field=_NUMBER)
        wish = checks.decode(worker_pb2.KvWish, message.data)
        checks.check_token(name, _TRANSFER)
        if not int(digits):
            await self._give_up(name, wish)
            return
        # Each waits for the engine: others do not wait for it.
        self._background.start(self._answer(message, name, int(digits), wish))

    async def _give_up(self, name: str, wish: worker_pb2.KvWish) -> None:
        """The one who asked wants no more."""
        session = self._sessions.get(name)
        if session is not None and is_ticket(wish.ticket, session.wish.ticket):
            del self._sessions[name]
            await self._end(session)

    async def _answer(self, message: Message, name: str, number: int, wish: worker_pb2.KvWish) -> None:
        try:
            data = await self._packet(name, number, wish)
        except Failed as error:
            session = self._sessions.get(name)
            if session is not None and is_ticket(wish.ticket, session.wish.ticket):
                session.is_over = True
                wish = session.wish  # questions after the first do not say whose state it is
            data = last_packet(wish, str(error)).SerializeToString()
        try:
            await message.respond(data)
        except InferFluxError as error:
            log.debug("a packet of KV state was not sent", why=error.message)

    async def _packet(self, name: str, number: int, wish: worker_pb2.KvWish) -> bytes:
        """The packet of this number; one that says nothing where there is none yet.

        Raises:
            Failed: the wish is refused, or the piece cannot be stored.
        """
        session = self._sessions.get(name)
        if session is None:
            if number != 1:
                raise Failed("refused", "the transfer is over")
            if len(self._sessions) >= _MOST_TRANSFERS:
                raise Failed("busy", f"{_MOST_TRANSFERS} workers are sent state over NATS already")
            session = self._sessions[name] = _Session(self._doors.begin(wish, "nats"), wish)
        if not is_ticket(wish.ticket, session.wish.ticket):
            raise Failed("refused", "the ticket is of another transfer")
        session.asked_s = time.monotonic()
        async with session.turn:
            if number == session.number:
                return session.answered
            if number != session.number + 1 or session.is_over:
                raise Failed("refused", f"packet {number} is asked for after {session.number}")
            await self._remove(session)
            if session.waiting is None:
                session.waiting = asyncio.create_task(_next(session.sending))
            done, _ = await asyncio.wait([session.waiting], timeout=_ANSWER_S)
            if not done:
                return worker_pb2.KvPacket().SerializeToString()
            waiting, session.waiting = session.waiting, None
            try:
                packet = waiting.result()
            except ChannelClosed as error:
                raise Failed("refused", str(error)) from None
            session.answered = await self._store(session, packet)
            session.number, session.is_over = number, packet.is_last
            return session.answered

    async def _store(self, session: _Session, packet: worker_pb2.KvPacket) -> bytes:
        """Put the bytes of a packet where they can be read; returns the packet that tells of them."""
        told = worker_pb2.KvPacket()
        told.CopyFrom(packet)
        if packet.name:
            folder = session.sending.folder
            data, told.crc = await asyncio.to_thread(_whole, folder, packet.name, packet.n_bytes)
            session.stored = told.name = secrets.token_hex(16)
            try:
                await self._objects.put(told.name, data)
            except InferFluxError as error:
                raise Failed("no_room", f"a piece cannot be stored on NATS: {error.message}") from None
        session.sending.sent(packet, is_read=True)
        return told.SerializeToString()

    async def _remove(self, session: _Session) -> None:
        """Remove the object of the packet before: who asked has it, or is gone."""
        name, session.stored = session.stored, ""
        if name:
            try:
                await self._objects.remove(name)
            except InferFluxError as error:  # it goes by its age
                log.debug("a piece was not removed from NATS", why=error.message)

    async def _sweep(self) -> None:
        """End the transfers that are not asked for any more."""
        while True:
            await asyncio.sleep(1.0)
            now_s = time.monotonic()
            for name, session in list(self._sessions.items()):
                if now_s - session.asked_s > STALL_S and not session.turn.locked():
                    del self._sessions[name]
                    await self._end(session)

    async def _end(self, session: _Session) -> None:
        if session.waiting is not None:
            session.waiting.cancel()
        await session.sending.close()
        await self._remove(session)


class NatsTransport:
    """Packets one by one, as replies to questions."""

    name = "nats"

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._objects = bus.objects(subjects.KV_BUCKET)

    def reaches(self, source: scheduler_pb2.KvSource) -> bool:
        return source.takes_nats

    async def fetch(
        self, source: scheduler_pb2.KvSource, wish: worker_pb2.KvWish, into: KvChannel, folder: PieceFolder
    ) -> None:
        subject, transfer = subjects.worker_kv(source.worker_id), secrets.token_hex(16)
        again = worker_pb2.KvWish(ticket=wish.ticket).SerializeToString()
        try:
            await self._fetch(subject, transfer, wish.SerializeToString(), again, into, folder)
        finally:
            with contextlib.suppress(InferFluxError):
                await self._bus.publish(subject, again, {_TRANSFER: transfer, _NUMBER: "0"})

    async def _fetch(
        self,
        subject: str,
        transfer: str,
        question: bytes,
        again: bytes,
        into: KvChannel,
        folder: PieceFolder,
    ) -> None:
        """As `fetch`; `question` is asked first, `again` for each packet after the first."""
        number = 1
        while True:
            began_s = time.monotonic()
            packet = await self._ask(subject, transfer, number, question)
            question = again
            if not (packet.tenant or packet.is_last):  # nothing yet
                if into.is_closed:
                    raise ChannelClosed("no more is wanted")
                continue
            number += 1
            into.check(packet)
            await into.until_room(packet.n_bytes)
            if packet.n_bytes:
                packet.name = await self._take(packet, folder)
            await into.put(packet, began_s=began_s)
            if packet.is_last:
                return

    async def _ask(self, subject: str, transfer: str, number: int, question: bytes) -> worker_pb2.KvPacket:
        headers = {_TRANSFER: transfer, _NUMBER: str(number)}
        try:
            try:
                data = await self._bus.request(subject, question, timeout_s=_ASK_S, headers=headers)
            except DeadlineExceeded:  # the answer may be lost: it is given again
                data = await self._bus.request(subject, question, timeout_s=_ASK_S, headers=headers)
            return checks.decode(worker_pb2.KvPacket, data)
        except Unavailable as error:
            raise Failed("unreachable", error.message) from None
        except InferFluxError as error:
            reason = "timeout" if isinstance(error, DeadlineExceeded) else "refused"
            raise Failed(reason, error.message) from None

    async def _take(self, packet: worker_pb2.KvPacket, folder: PieceFolder) -> str:
        """Make a piece a file; returns its name."""
        try:
            checks.check_token(packet.name, "name")
            data = await self._objects.get(packet.name)
            await self._objects.remove(packet.name)
        except InferFluxError as error:
            raise Failed("lost", f"a piece cannot be had from NATS: {error.message}") from None
        if len(data) != packet.n_bytes:
            raise Failed("corrupt", f"a piece has {len(data)} bytes, not {packet.n_bytes}")
        with folder.new(packet.n_bytes) as piece:
            piece.write(data)
            piece.end(packet.crc)
        return piece.name


async def _next(sending: Sending) -> worker_pb2.KvPacket:
    return (await sending.next()).packet


def _whole(folder: PieceFolder, name: str, n_bytes: int) -> tuple[bytes, int]:
    return b"".join(folder.chunks(name, n_bytes)), folder.crc(name, n_bytes)
