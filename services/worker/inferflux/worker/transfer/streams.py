"""Carriers over streams: names of files over a Unix socket, bytes over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from inferflux.common.contract import address
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.process import logs
from inferflux.common.process.tasks import Background
from inferflux.common.process.tls import ClientTls, ServerTls, TlsFiles
from inferflux.v1 import scheduler_pb2, worker_pb2

from . import wire
from .channel import ChannelClosed, KvChannel
from .packets import MAX_WISH_BYTES, Failed, last_packet
from .piece_files import CHUNK_BYTES, PieceFolder
from .transport import Doors, Sending

_MOST_CONNECTIONS = 128
# A caller says what it wants within this time, and a server accepts a call.
_HELLO_S = 5.0
# The caller's name and the ticket come first, so that a stranger's wish takes no memory.
_HELLO_BYTES = 1024

log = logs.get("worker.transfer")

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class StreamServer:
    """Answers wishes that come over streams.

    Args:
        tells_names: those who ask see the same files, and remove them; otherwise bytes are sent.
    """

    def __init__(self, doors: Doors, *, tells_names: bool) -> None:
        self._doors = doors
        self._tells_names = tells_names
        self._background = Background()
        self._server: asyncio.Server | None = None
        self._n_open = 0

    async def listen_at(self, path: Path) -> None:
        """Raises OSError where there can be no socket."""
        self._server = await asyncio.start_unix_server(self._on_connect, path, limit=CHUNK_BYTES)

    async def listen(self, where: str, variable: str, tls: ServerTls | None) -> str:
        """Listen at host:port; returns it with the port that it has.

        Raises:
            InvalidArgument: it cannot; names the variable.
        """
        host, port = address.split(where, variable)
        try:
            self._server = await asyncio.start_server(
                self._on_connect,
                host,
                port,
                limit=CHUNK_BYTES,
                ssl=tls.context() if tls is not None else None,
                ssl_handshake_timeout=_HELLO_S if tls is not None else None,
            )
        except OSError as error:
            raise InvalidArgument(f"{variable}: cannot listen at {where}: {error}", field=variable) from None
        port = self._server.sockets[0].getsockname()[1]
        return address.place_of(f"{where.rpartition(':')[0]}:{port}", socket.gethostname())

    async def close(self) -> None:
        """Listen no more, and cut what is under way."""
        if self._server is not None:
            self._server.close()
        await self._background.close()

    def _on_connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._n_open >= _MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._n_open += 1
        self._background.start(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HELLO_S):
                wish = await wire.read_message(reader, worker_pb2.KvWish, _HELLO_BYTES)
                if self._doors.know(wish.ticket) and not wish.model_digest:
                    wish = await wire.read_message(reader, worker_pb2.KvWish, MAX_WISH_BYTES)
            try:
                sending = self._doors.begin(wish, "shm" if self._tells_names else "tcp")
            except Failed as refusal:
                await wire.write_message(writer, last_packet(wish, str(refusal)))
                return
            await self._send(sending, reader, writer)
        except (Failed, ChannelClosed, TimeoutError) as error:
            log.debug("KV state was not fetched to its end", why=str(error))
        finally:
            self._n_open -= 1
            await _close(writer)

    async def _send(
        self, sending: Sending, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        # Nothing more is said by who asked: a byte, or the end, is the end.
        ended = asyncio.create_task(reader.read(1))
        ended.add_done_callback(lambda _: sending.give_up())
        try:
            while True:
                packet = (await sending.next()).packet
                if self._tells_names:
                    await wire.write_message(writer, packet)
                else:
                    await wire.send_piece(writer, sending.folder, packet)
                sending.sent(packet, is_read=not self._tells_names)
                if packet.is_last:
                    return
        finally:
            ended.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await ended
            await sending.close()


class ShmTransport:
    """Names of files in the folder that both workers share; the files are the shared memory.

    Both ends see the folder, so a name is enough, and no descriptor is passed: a piece that is never taken
    can be found and removed, and either end may die.

    Args:
        own: the folder of this worker.
    """

    name = "shm"

    def __init__(self, own: Callable[[], PieceFolder | None]) -> None:
        self._own = own

    def reaches(self, source: scheduler_pb2.KvSource) -> bool:
        own = self._own()
        is_same = own is not None and bool(source.exchange) and source.exchange == own.name
        return is_same and own is not None and own.has_socket(source.incarnation)

    async def fetch(
        self, source: scheduler_pb2.KvSource, wish: worker_pb2.KvWish, into: KvChannel, folder: PieceFolder
    ) -> None:
        path = folder.socket_of(source.incarnation)

        def connect() -> Awaitable[_Streams]:
            return asyncio.open_unix_connection(path, limit=CHUNK_BYTES)

        await _fetch(connect, wish, into, folder, takes_names=True)


class TcpTransport:
    """Bytes over TCP, with TLS where the source speaks it."""

    name = "tcp"

    def __init__(self, tls: TlsFiles) -> None:
        self._files = tls
        self._tls: ClientTls | None = None

    def reaches(self, source: scheduler_pb2.KvSource) -> bool:
        return bool(source.address)

    async def fetch(
        self, source: scheduler_pb2.KvSource, wish: worker_pb2.KvWish, into: KvChannel, folder: PieceFolder
    ) -> None:
        host, port = address.split(source.address, "address")
        context = None
        if source.is_tls:
            try:
                self._tls = self._tls or ClientTls(self._files)
            except InvalidArgument as error:
                raise Failed("unreachable", error.message) from None
            context = self._tls.context()

        def connect() -> Awaitable[_Streams]:
            return asyncio.open_connection(host, port, limit=CHUNK_BYTES, ssl=context)

        await _fetch(connect, wish, into, folder, takes_names=False)


async def _fetch(
    connect: Callable[[], Awaitable[_Streams]],
    wish: worker_pb2.KvWish,
    into: KvChannel,
    folder: PieceFolder,
    *,
    takes_names: bool,
) -> None:
    """As `KvTransport.fetch`, over a connection."""
    try:
        async with asyncio.timeout(_HELLO_S):
            reader, writer = await connect()
    except OSError as error:  # a timeout and TLS's errors are such
        raise Failed("unreachable", f"the source cannot be reached: {error or 'no answer'}") from None
    try:
        hello = worker_pb2.KvWish(
            ticket=wish.ticket, tenant=wish.tenant, request_id=wish.request_id, epoch=wish.epoch
        )
        await wire.write_message(writer, hello)
        await wire.write_message(writer, wish)
        await wire.receive(reader, into, folder, takes_names=takes_names)
    finally:
        await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close a stream; one whose other end does not read is cut."""
    writer.close()
    try:
        async with asyncio.timeout(1.0):
            await writer.wait_closed()
    except OSError:
        writer.transport.abort()
    except asyncio.CancelledError:
        writer.transport.abort()
        raise
