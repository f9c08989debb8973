"""Three nats-servers that are one, each of which may be killed, stopped and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from inferflux.common.bus import Bus
from inferflux.common.process.private_files import write_private
from inferflux.common.servers import nats_users
from inferflux.common.servers.nats_users import NatsUser
from inferflux.common.servers.servers import (
    LOOPBACK,
    NatsMember,
    ServerProcess,
    free_port,
    nats_command,
    nats_members,
)

SERVERS = 3


class NatsCluster:
    """Servers by index. Use as a context manager; none runs until it is started.

    Args:
        users: who may connect, with the password that `url` names; none: everyone.
    """

    def __init__(self, directory: Path, users: Sequence[NatsUser] = ()) -> None:
        self._passwords = {user.name: f"password-of-{user.name}" for user in users}
        users_file = directory / "users.conf" if users else None
        if users_file is not None:
            write_private(users_file, nats_users.users_config(users, self._passwords))
        members = nats_members([f"nats-{index}" for index in range(SERVERS)], "between-servers")
        self.servers = [self._server(directory / member.name, member, users_file) for member in members]

    @staticmethod
    def _server(store: Path, member: NatsMember, users_file: Path | None) -> ServerProcess:
        port = free_port()
        command = nats_command(port, store, users_file=users_file, member=member)
        return ServerProcess(command, port=port, name="nats-server", log_path=store / "nats-server.log")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.kill()

    def url(self, *indices: int, user: str = "") -> str:
        """Of these servers, or of all."""
        login = f"{user}:{self._passwords[user]}@" if user else ""
        chosen = [self.servers[index] for index in indices or range(SERVERS)]
        return ",".join(f"nats://{login}{LOOPBACK}:{server.port}" for server in chosen)

    async def start(self, *indices: int) -> None:
        """Start these, or all that do not run, and wait until they answer."""
        starting = [self.servers[index] for index in indices or range(SERVERS)]
        for server in starting:
            if not server.is_running:
                server.start()
        for server in starting:
            await asyncio.to_thread(server.wait_ready)

    def kill(self, index: int) -> None:
        self.servers[index].kill()

    @staticmethod
    async def leader(bus: Bus, stream: str) -> int:
        """Which server leads a stream."""
        answer = await bus._link.api(f"STREAM.INFO.{stream}")
        return int(answer["cluster"]["leader"].rpartition("-")[2])

    @staticmethod
    async def replicas(bus: Bus, stream: str) -> int:
        """On how many servers it is kept."""
        return int((await bus._link.api(f"STREAM.INFO.{stream}"))["config"]["num_replicas"])
