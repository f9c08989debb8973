"""Moves a slot of a Redis Cluster from one server to another, key by key."""

from __future__ import annotations

from typing import cast

from harness.redis_cluster import PASSWORD, ClusterServers
from redis.crc import key_slot

from inferflux.cli.stack.servers import LOOPBACK


class SlotMove:
    """The move of the slot that a key is in; nothing has moved yet.

    Args:
        source, target: indexes of the servers.
    """

    def __init__(self, servers: ClusterServers, key: str, *, source: int, target: int) -> None:
        self._servers = servers
        self._slot = key_slot(key.encode())
        self._source, self._target = source, target

    async def begin(self) -> None:
        await self._say(self._target, "SETSLOT", self._slot, "IMPORTING", await self._id(self._source))
        await self._say(self._source, "SETSLOT", self._slot, "MIGRATING", await self._id(self._target))

    async def names(self) -> list[bytes]:
        """Keys that have not moved yet."""
        return cast("list[bytes]", await self._say(self._source, "GETKEYSINSLOT", self._slot, 1000))

    async def move(self, name: bytes | str) -> None:
        async with self._servers.at(self._source) as client:
            port = self._servers.servers[self._target].port
            words = ("MIGRATE", LOOPBACK, port, name, 0, 5000, "AUTH", PASSWORD)
            await client.execute_command(*words)  # type: ignore[no-untyped-call]

    async def move_all(self) -> None:
        for name in await self.names():
            await self.move(name)

    async def end(self) -> None:
        identity = await self._id(self._target)
        for index in (self._target, self._source):
            await self._say(index, "SETSLOT", self._slot, "NODE", identity)

    async def whole(self) -> None:
        """Have the servers do all of it, which they do as one step (Valkey 9). It goes on beside the test."""
        slots = ("SLOTSRANGE", self._slot, self._slot)
        await self._say(self._source, "MIGRATESLOTS", *slots, "NODE", await self._id(self._target))

    async def _id(self, index: int) -> bytes:
        return cast("bytes", await self._say(index, "MYID"))

    async def _say(self, index: int, *words: object) -> object:
        async with self._servers.at(index) as client:
            return await client.execute_command("CLUSTER", *words)  # type: ignore[no-untyped-call]
