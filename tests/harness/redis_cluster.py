"""A Redis Cluster on this machine, with a password."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self

import redis.asyncio
import redis.asyncio.cluster
from harness.cluster_forming import Member, form
from harness.servers import ServerProcess, configured
from redis.crc import key_slot

from inferflux.cli.stack.servers import LOOPBACK, free_port, valkey_command
from inferflux.common.redis.redis_cluster.slots import SlotMap, read_map

PASSWORD = "of/servers@1"  # of tests


class ClusterServers:
    """Servers that may be killed. Use as an async context manager: inside, all slots are served.

    Args:
        n_replicas: of each primary.
        node_timeout_ms: a server that does not answer for this long is taken as lost.

    Attributes:
        servers: at the start three primaries, then their replicas.
    """

    def __init__(self, directory: Path, *, n_replicas: int = 0, node_timeout_ms: int = 1000) -> None:
        self._node_timeout_ms = node_timeout_ms
        self._members = [Member(LOOPBACK, free_port(), free_port()) for _ in range(3 * (1 + n_replicas))]
        self.servers = [
            self._server(member, directory / f"server-{index}") for index, member in enumerate(self._members)
        ]

    @property
    def url(self) -> str:
        hosts = ",".join(f"{LOOPBACK}:{server.port}" for server in self.servers[:3])
        return f"redis-cluster://:of%2Fservers%401@{hosts}/0"

    async def __aenter__(self) -> Self:
        for process in self.servers:
            process.start()
        for process in self.servers:
            await asyncio.to_thread(process.wait_ready)
        await form(self._members, n_primaries=3, password=PASSWORD)
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.servers:
            process.kill()

    def at(self, index: int) -> redis.asyncio.Redis:
        """A client of one server."""
        return redis.asyncio.Redis(port=self.servers[index].port, password=PASSWORD)

    def client_of_all(self) -> redis.asyncio.RedisCluster:
        """The library's own, which has all commands."""
        nodes = [redis.asyncio.cluster.ClusterNode(LOOPBACK, each.port) for each in self.servers[:3]]
        return redis.asyncio.RedisCluster(startup_nodes=nodes, password=PASSWORD)

    async def map(self, index: int = 0) -> SlotMap:
        """Map of the slots, as this server has it."""
        async with self.at(index) as client:
            slots = await client.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
            nodes = await client.execute_command("CLUSTER", "NODES")  # type: ignore[no-untyped-call]
        return read_map(slots, nodes, asked=(LOOPBACK, self.servers[index].port))

    async def primary_of(self, key: str, *, asked: int = 0) -> int:
        """Index of the server that has a key, by the map of the server that is asked."""
        found = (await self.map(asked)).range_of(key_slot(key.encode()))
        port = found and found.primary[1]
        return next(index for index, each in enumerate(self.servers) if each.port == port)

    @staticmethod
    def replica_of(index: int) -> int:
        """Index of the replica of a primary, or of a replica that has become one."""
        return (index + 3) % 6

    async def replicates(self, index: int) -> None:
        """Return when this server follows another one."""
        async with self.at(index) as client, asyncio.timeout(30):
            while True:
                state = await client.info("replication")
                if state.get("master_link_status") == "up":
                    return
                await asyncio.sleep(0.02)

    def _server(self, at: Member, directory: Path) -> ServerProcess:
        lines = [
            "cluster-enabled yes",
            f"cluster-port {at.bus_port}",
            f"cluster-announce-ip {LOOPBACK}",
            f"cluster-node-timeout {self._node_timeout_ms}",
            # While one primary is lost, the others serve what they have.
            "cluster-require-full-coverage no",
            "cluster-allow-replica-migration no",
            # A replica that comes gets its copy at once.
            "repl-diskless-sync-delay 0",
            f'masterauth "{PASSWORD}"',
        ]
        command = [*configured(valkey_command(at.port, directory), lines), "--requirepass", PASSWORD]
        return ServerProcess(command, port=at.port, name="valkey-server", log_path=directory / "log")
