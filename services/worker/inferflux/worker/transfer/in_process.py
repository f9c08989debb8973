"""Carrier between workers of one process."""

from __future__ import annotations

from inferflux.v1 import scheduler_pb2, worker_pb2

from .channel import KvChannel
from .piece_files import PieceFolder
from .transport import Doors


class ChannelTransport:
    """Packets from one channel to the other; the pieces are files of a folder that both workers use."""

    name = "channel"

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def reaches(self, source: scheduler_pb2.KvSource) -> bool:
        return self._doors.has(source.incarnation)

    async def fetch(
        self,
        source: scheduler_pb2.KvSource,  # noqa: ARG002 - the ticket says which it is
        wish: worker_pb2.KvWish,
        into: KvChannel,
        folder: PieceFolder,
    ) -> None:
        sending = self._doors.begin(wish, self.name)
        try:
            while True:
                carried = await sending.next()
                if carried.packet.name:
                    folder.check_size(carried.packet.name, carried.packet.n_bytes)
                await into.put(carried.packet, began_s=carried.began_s)
                sending.sent(carried.packet, is_read=False)
                if carried.packet.is_last:
                    return
        finally:
            await sending.close()
