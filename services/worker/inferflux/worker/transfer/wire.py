"""Wishes and packets on a stream: four bytes of length (big-endian), the message, the bytes of a piece."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from inferflux.v1 import worker_pb2

from .channel import KvChannel
from .packets import MAX_PACKET_BYTES, Failed
from .piece_files import CHUNK_BYTES, PieceFolder
from .transport import STALL_S

_LENGTH = struct.Struct(">I")

_M = TypeVar("_M", bound=Message)


async def read_message(reader: asyncio.StreamReader, kind: type[_M], most_bytes: int) -> _M:
    """The next message, however long it takes to come.

    Raises:
        Failed: it is no such message, or the stream has ended.
    """
    try:
        (n,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if n > most_bytes:
            raise Failed("corrupt", f"a {kind.DESCRIPTOR.name} of {n} bytes")
        async with asyncio.timeout(STALL_S):
            return kind.FromString(await reader.readexactly(n))
    except DecodeError as error:
        raise Failed("corrupt", f"no {kind.DESCRIPTOR.name}: {error}") from None
    except TimeoutError:  # an OSError as well
        raise Failed("timeout", f"half a message, and nothing for {STALL_S:g} s") from None
    except (asyncio.IncompleteReadError, OSError) as error:
        raise Failed("lost", f"the connection was cut: {error or 'it ended'}") from None


async def write_message(writer: asyncio.StreamWriter, message: Message) -> None:
    """Raises Failed where the other end takes nothing."""
    data = message.SerializeToString()
    await _write(writer, _LENGTH.pack(len(data)) + data)


async def send_piece(writer: asyncio.StreamWriter, folder: PieceFolder, packet: worker_pb2.KvPacket) -> None:
    """Send a packet and the bytes of its file, if it has one.

    In parts, and not by `loop.sendfile`: uvloop has none, and it sends nothing over TLS.

    Raises:
        Failed: the file is gone, or the other end takes nothing.
    """
    name = packet.name
    told = worker_pb2.KvPacket()
    told.CopyFrom(packet)
    told.name = ""
    if name:
        # Another thread: a state may have hundreds of megabytes.
        told.crc = await asyncio.to_thread(folder.crc, name, packet.n_bytes)
    await write_message(writer, told)
    if name:
        for chunk in folder.chunks(name, packet.n_bytes):
            await _write(writer, chunk)


async def receive(
    reader: asyncio.StreamReader, into: KvChannel, folder: PieceFolder, *, takes_names: bool
) -> None:
    """Put the packets of a stream into a channel, up to the last one. Pieces are checked, and files then.

    Args:
        takes_names: the other end names files of this folder; otherwise it sends bytes.

    Raises:
        Failed: it broke off, or is damaged.
        ChannelClosed: the channel was closed.
    """
    while True:
        packet = await read_message(reader, worker_pb2.KvPacket, MAX_PACKET_BYTES)
        began_s = time.monotonic()
        into.check(packet)
        if bool(packet.name) is not bool(takes_names and packet.n_bytes):
            raise Failed("corrupt", "a packet names a file where it should not, or names none")
        await into.until_room(packet.n_bytes)
        if packet.name:
            folder.check_size(packet.name, packet.n_bytes)
        elif packet.n_bytes:
            packet.name = await _receive_piece(reader, folder, packet.n_bytes, packet.crc)
        await into.put(packet, began_s=began_s)
        if packet.is_last:
            return


async def _receive_piece(reader: asyncio.StreamReader, folder: PieceFolder, n_bytes: int, crc: int) -> str:
    """The name of a piece, once all of it is there."""
    with folder.new(n_bytes) as piece:
        left = n_bytes
        while left:
            try:
                async with asyncio.timeout(STALL_S):
                    chunk = await reader.read(min(left, CHUNK_BYTES))
            except OSError as error:  # a timeout is one
                reason = "timeout" if isinstance(error, TimeoutError) else "lost"
                raise Failed(reason, f"a piece broke off: {error or 'nothing came'}") from None
            if not chunk:
                raise Failed("lost", f"the connection was cut {left} bytes before the end of a piece")
            piece.write(chunk)
            left -= len(chunk)
            # A buffer that is full gives chunk after chunk without waiting.
            await asyncio.sleep(0)
        piece.end(crc)
    return piece.name


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if writer.is_closing():  # uvloop would raise a RuntimeError
        raise Failed("lost", "the connection was cut")
    writer.write(data)
    try:
        async with asyncio.timeout(STALL_S):
            await writer.drain()
    except TimeoutError:
        raise Failed("timeout", f"nothing was taken for {STALL_S:g} s") from None
    except OSError as error:
        raise Failed("lost", f"the connection was cut: {error}") from None
