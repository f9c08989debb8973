"""A primary and a replica of Redis, and three sentinels that watch them: for tests and benchmarks.

All on this machine, with passwords.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Self

import redis.asyncio

from inferflux.common.fleet_files import SERVICE
from inferflux.common.private_files import write_private
from inferflux.common.servers import LOOPBACK, ServerProcess, free_port, valkey_command

PASSWORD, OF_SENTINELS = "of/servers@1", "of-sentinels"


class SentinelServers:
    """Servers that may be killed. Use as an async context manager: inside, a failover is possible.

    Args:
        down_after_ms: a primary that does not answer for this long is taken as lost.

    Attributes:
        servers: two; the first is the primary at the start.
    """

    def __init__(self, directory: Path, *, down_after_ms: int = 1000) -> None:
        self._down_after_ms = down_after_ms
        self.servers = [self._server(directory / "one"), self._server(directory / "two")]
        self.servers[1].command += ["--replicaof", f"{LOOPBACK} {self.servers[0].port}"]
        self.sentinels = [self._sentinel(directory / f"sentinel-{index}") for index in range(3)]

    @property
    def url(self) -> str:
        hosts = ",".join(f"{LOOPBACK}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://:of%2Fservers%401@{hosts}/{SERVICE}/0?sentinel_password={OF_SENTINELS}"

    async def __aenter__(self) -> Self:
        for process in (*self.servers, *self.sentinels):
            process.start()
            await asyncio.to_thread(process.wait_ready)
        async with asyncio.timeout(30):
            while True:
                if await self._is_complete():
                    return self
                await asyncio.sleep(0.05)

    async def __aexit__(self, *_: object) -> None:
        for process in (*self.sentinels, *self.servers):
            process.kill()

    def at(self, index: int) -> redis.asyncio.Redis:
        """A client of one server."""
        return redis.asyncio.Redis(port=self.servers[index].port, password=PASSWORD)

    async def primary_of(self, _key: str) -> int:
        """Which server is the primary, as a sentinel has it."""
        async with redis.asyncio.Redis(port=self.sentinels[0].port, password=OF_SENTINELS) as client:
            masters: Any = await client.sentinel_masters()
        return next(i for i, each in enumerate(self.servers) if each.port == masters[SERVICE]["port"])

    @staticmethod
    def replica_of(index: int) -> int:
        """The other one."""
        return 1 - index

    async def replicates(self, index: int = 1) -> None:
        """Return when this server follows the other one."""
        async with self.at(index) as client, asyncio.timeout(30):
            while True:
                if await self._follows(client):
                    return
                await asyncio.sleep(0.02)

    @staticmethod
    async def _follows(client: redis.asyncio.Redis) -> bool:
        state: Any = await client.info("replication")
        return bool(state.get("master_link_status") == "up")

    async def _is_complete(self) -> bool:
        for sentinel in self.sentinels:
            async with redis.asyncio.Redis(port=sentinel.port, password=OF_SENTINELS) as client:
                masters: Any = await client.sentinel_masters()
                state = masters[SERVICE]
                if (state["num-other-sentinels"], state["num-slaves"]) != (2, 1):
                    return False
        await self.replicates()
        return True

    @staticmethod
    def _server(directory: Path) -> ServerProcess:
        port = free_port()
        command = [*valkey_command(port, directory), "--requirepass", PASSWORD, "--masterauth", PASSWORD]
        # A replica that comes gets its copy at once.
        command += ["--repl-diskless-sync-delay", "0"]
        return ServerProcess(command, port=port, name="valkey-server", log_path=directory / "log")

    def _sentinel(self, directory: Path) -> ServerProcess:
        port = free_port()
        command = sentinel_command(
            port, directory, primary=(LOOPBACK, self.servers[0].port), down_after_ms=self._down_after_ms
        )
        return ServerProcess(command, port=port, name="valkey-sentinel", log_path=directory / "log")


def sentinel_command(
    port: int,
    directory: Path,
    *,
    primary: tuple[str, int],
    down_after_ms: int,
    host: str = LOOPBACK,
    user: str = "",
    password: str = PASSWORD,
) -> list[str]:
    """The command that runs one of three sentinels. Writes its configuration into `directory`.

    Args:
        primary: address and port of the first primary.
        down_after_ms: a primary that does not answer for this long is taken as lost.
        user, password: as which it calls the servers.
    """
    directory.mkdir(parents=True)
    lines = [
        f"bind {host}",
        f"port {port}",
        f'dir "{directory}"',
        f"requirepass {OF_SENTINELS}",
        f"sentinel sentinel-pass {OF_SENTINELS}",
        f"sentinel monitor {SERVICE} {primary[0]} {primary[1]} 2",
        *([f"sentinel auth-user {SERVICE} {user}"] if user else []),
        f"sentinel auth-pass {SERVICE} {password}",
        f"sentinel down-after-milliseconds {SERVICE} {down_after_ms}",
        # A sentinel that was not elected waits for twice this long before it tries again.
        f"sentinel failover-timeout {SERVICE} {2 * down_after_ms}",
    ]
    config = directory / "sentinel.conf"
    write_private(config, "\n".join(lines) + "\n")
    binary = valkey_command(port, directory / "unused")[0]
    return [binary, str(config), "--sentinel"]
