"""A primary and a replica of Redis, and three sentinels that watch them, on this machine, with passwords."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self

import redis.asyncio
import redis.exceptions
from harness.servers import ServerProcess, sentinel_command, watched_command

from inferflux.cli.stack.servers import LOOPBACK, free_port
from inferflux.common.servers.fleet_files import SERVICE, Watched

N_SENTINELS = 3
PASSWORD, OF_SENTINELS = "of/servers@1", "of-sentinels"


class SentinelServers:
    """Servers that may be killed. Use as an async context manager: inside, a failover is possible.

    Args:
        down_after_ms: a primary that does not answer for this long is taken as lost.

    Attributes:
        servers: two; the first is the primary at the start.
    """

    def __init__(self, directory: Path, *, down_after_ms: int = 1000) -> None:
        ports = [free_port(), free_port()]
        self._watched = Watched((LOOPBACK, ports[0]), PASSWORD, OF_SENTINELS, down_after_ms=down_after_ms)
        self.servers = [
            self._server(port, directory / name) for port, name in zip(ports, ("one", "two"), strict=True)
        ]
        self.sentinels = [self._sentinel(directory / f"sentinel-{index}") for index in range(N_SENTINELS)]

    @property
    def url(self) -> str:
        hosts = ",".join(f"{LOOPBACK}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://:of%2Fservers%401@{hosts}/{SERVICE}/0?sentinel_password={OF_SENTINELS}"

    async def __aenter__(self) -> Self:
        await self._start(self.servers)
        # What follows when a sentinel first asks the primary, it knows at once; what comes later, in 10 s.
        await self.replicates()
        await self._start(self.sentinels)
        for index in range(N_SENTINELS):
            await _until(lambda index=index: self._is_watching(index))  # type: ignore[misc]
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in (*self.sentinels, *self.servers):
            process.kill()

    def at(self, index: int) -> redis.asyncio.Redis:
        """A client of one server."""
        return redis.asyncio.Redis(port=self.servers[index].port, password=PASSWORD)

    async def primary_of(self, _key: str = "") -> int:
        """Index of the primary, as a sentinel reports it."""
        port = int((await self._told(0))["port"])
        return next(i for i, each in enumerate(self.servers) if each.port == port)

    @staticmethod
    def replica_of(index: int) -> int:
        """The other one."""
        return 1 - index

    async def replicates(self, index: int = 1) -> None:
        """Return when this server has what the primary has, or is it."""
        async with self.at(index) as client:

            async def is_so() -> bool:
                state = await client.info("replication")
                return bool(state.get("master_link_status", "up") == "up")

            await _until(is_so)

    async def _is_watching(self, index: int) -> bool:
        """True if a sentinel knows the others and the replica: from then on the replica can take over."""
        told = await self._told(index)
        return (int(told["num-other-sentinels"]), int(told["num-slaves"])) == (N_SENTINELS - 1, 1)

    async def _told(self, index: int) -> dict[str, Any]:
        """State of the servers, as a sentinel reports it."""
        port = self.sentinels[index].port
        async with redis.asyncio.Redis(port=port, password=OF_SENTINELS) as client:
            masters: Any = await client.sentinel_masters()
        return dict(masters[SERVICE])

    @staticmethod
    async def _start(processes: Sequence[ServerProcess]) -> None:
        for process in processes:
            process.start()
        for process in processes:
            await asyncio.to_thread(process.wait_ready)

    def _server(self, port: int, directory: Path) -> ServerProcess:
        command = [*watched_command(port, directory, self._watched), "--requirepass", PASSWORD]
        return ServerProcess(command, port=port, name="valkey-server", log_path=directory / "log")

    def _sentinel(self, directory: Path) -> ServerProcess:
        port = free_port()
        command = sentinel_command(port, directory, self._watched)
        return ServerProcess(command, port=port, name="valkey-sentinel", log_path=directory / "log")


async def _until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await is_so():  # of another process
            await asyncio.sleep(0.05)


async def replicated(client: redis.asyncio.Redis, value: str) -> None:
    """Set the key `inferflux:{t}:x`; returns when a replica has it."""
    async with asyncio.timeout(60):
        while True:
            try:
                pipeline = client.pipeline(transaction=False)
                pipeline.set("inferflux:{t}:x", value)
                pipeline.execute_command("WAIT", 1, 500)
                if (await pipeline.execute())[1]:
                    return
            except (redis.exceptions.RedisError, OSError):
                await asyncio.sleep(0.05)
