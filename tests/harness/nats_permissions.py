"""A nats-server with InferFlux's users, and what it lets one of them do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import nats
from harness.servers import ServerProcess

from inferflux.cli.stack.servers import LOOPBACK, free_port, nats_command
from inferflux.common.contract import subjects
from inferflux.common.process.private_files import write_private
from inferflux.common.servers import nats_users
from inferflux.common.servers.nats_users import NatsUser


class GuardedNats:
    """A nats-server whose clients have to be one of `users`."""

    def __init__(self, directory: Path, users: Sequence[NatsUser]) -> None:
        self._passwords = {user.name: f"password-of-{user.name}" for user in users}
        users_file = directory / "users.conf"
        write_private(users_file, nats_users.users_config(users, self._passwords))
        self.port = free_port()
        command = nats_command(self.port, directory / "nats", users_file=users_file)
        log = directory / "nats-server.log"
        self.process = ServerProcess(command, port=self.port, name="nats-server", log_path=log)

    def url(self, user: str) -> str:
        return f"nats://{user}:{self._passwords[user]}@{LOOPBACK}:{self.port}"

    async def connect(self, user: str) -> Tried:
        """A plain client of NATS that is this user."""
        tried = Tried()
        url = self.url(user)
        prefix = subjects.inbox_prefix(url)
        await tried.client.connect(url, inbox_prefix=prefix, error_cb=tried.on_error, allow_reconnect=False)
        return tried


class Tried:
    """A client that finds out what it may do."""

    def __init__(self) -> None:
        self.client = nats.NATS()
        self._errors: list[str] = []

    async def on_error(self, error: Exception) -> None:
        self._errors.append(str(error))

    async def may_publish(self, names: Iterable[str]) -> set[str]:
        """Which subjects it may publish to."""
        wanted = set(names)
        for name in wanted:
            await self.client.publish(name, b"")
        return wanted - await self._refused(wanted, "publish")

    async def may_subscribe(self, names: Iterable[str]) -> set[str]:
        """Which subjects it may read."""
        wanted = set(names)
        subscriptions = [await self.client.subscribe(name) for name in wanted]
        refused = await self._refused(wanted, "subscription")
        for subscription in subscriptions:
            await subscription.unsubscribe()
        return wanted - refused

    async def _refused(self, names: set[str], what: str) -> set[str]:
        # nats-py puts the first PING before what it has buffered.
        for _ in range(2):
            await self.client.flush()
        by_error = {f'permissions violation for {what} to "{name.lower()}"': name for name in names}
        found = {name for error in self._errors for text, name in by_error.items() if text in error}
        self._errors.clear()
        return found
