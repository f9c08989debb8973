"""Three nats-servers that are one, each of which may be killed, stopped and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from harness.servers import ServerProcess, nats_member

from inferflux.cli.stack.servers import LOOPBACK, free_port, nats_command
from inferflux.common.bus import Bus
from inferflux.common.process.private_files import write_private
from inferflux.common.servers import nats_users
from inferflux.common.servers.nats_users import NatsUser

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
        places = [f"{LOOPBACK}:{free_port()}" for _ in range(SERVERS)]
        self.servers = []
        for index, place in enumerate(places):
            port, store = free_port(), directory / f"nats-{index}"
            alone = nats_command(port, store, users_file=users_file)
            command = nats_member(alone, f"nats-{index}", place, places, "between-servers")
            log = store / "nats-server.log"
            self.servers.append(ServerProcess(command, port=port, name="nats-server", log_path=log))

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
