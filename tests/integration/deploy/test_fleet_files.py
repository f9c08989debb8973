"""What containers of a fleet are given: real servers start with it, and find each other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
import redis.exceptions
from harness.deploy import ROOT
from harness.nats_cluster import NatsCluster
from harness.redis_sentinel import replicated
from harness.servers import ServerProcess

from inferflux.cli.stack.servers import free_port, nats_command, valkey_command
from inferflux.common.bus import Bus
from inferflux.common.contract import subjects
from inferflux.common.process.settings import ServiceSettings
from inferflux.common.redis import store
from inferflux.common.servers.access_files import write_access
from inferflux.common.servers.fleet_files import SERVICE

# Each has a host of its own, as containers have.
HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")


class Fleet:
    """The valkey-servers and sentinels of a fleet; each keeps its configuration with its data.

    Args:
        access: the folder that `write_access` wrote.
        addresses: of the servers, and of the sentinels.
    """

    def __init__(self, access: Path, data: Path, addresses: tuple[list[str], list[str]]) -> None:
        binary = valkey_command(1, data / "unused")[0]
        self.servers = [
            self._made(binary, address, access / "valkey", data / f"valkey-{i}", "--aclfile", "users.acl")
            for i, address in enumerate(addresses[0])
        ]
        self.sentinels = [
            self._made(binary, address, access / "sentinel", data / f"sentinel-{i}", "--sentinel")
            for i, address in enumerate(addresses[1])
        ]

    @staticmethod
    def _made(binary: str, address: str, access: Path, data: Path, *more: str) -> ServerProcess:
        host, _, port = address.rpartition(":")
        data.mkdir()
        config = data / "server.conf"
        config.write_text((access / f"{host}.conf").read_text() + f'dir "{data}"\nbind {host} 127.0.0.1\n')
        words = [str(access / word) if word == "users.acl" else word for word in more]
        command = [binary, str(config), *words]
        return ServerProcess(command, port=int(port), name="valkey-server", log_path=data / "log")

    def start(self) -> None:
        for process in (*self.servers, *self.sentinels):
            process.start()
            process.wait_ready()

    def kill(self) -> None:
        for process in (*self.sentinels, *self.servers):
            process.kill()


@pytest.fixture
def access(tmp_path: Path) -> Path:
    folder = tmp_path / "access"
    folder.mkdir()
    return folder


@pytest.fixture
def fleet(tmp_path: Path, access: Path) -> Iterator[Fleet]:
    servers = [f"{host}:{free_port()}" for host in HOSTS[:2]]
    sentinels = [f"{host}:{free_port()}" for host in HOSTS]
    write_access(access, nats="nats:4222", redis=",".join(servers), sentinels=sentinels)
    made = Fleet(access, tmp_path, (servers, sentinels))
    try:
        made.start()
        yield made
    finally:
        made.kill()


async def primary(access: Path, fleet: Fleet) -> int:
    """The port of what sentinels call the primary."""
    password = (access / "sentinel/health.password").read_text()
    async with redis.asyncio.Redis(port=fleet.sentinels[0].port, password=password) as client:
        masters: Any = await client.sentinel_masters()
    return int(masters[SERVICE]["port"])


async def test_a_replica_takes_over_and_stays_the_primary_over_a_restart_of_all(
    fleet: Fleet, access: Path
) -> None:
    client = store.connect((access / "policy/redis.url").read_text())
    await replicated(client, "first")
    fleet.servers[0].kill()
    async with asyncio.timeout(60):
        while await primary(access, fleet) != fleet.servers[1].port:
            await asyncio.sleep(0.05)
    fleet.servers[0].start()
    await replicated(client, "second")
    await client.aclose()
    fleet.kill()
    fleet.start()
    client = store.connect((access / "policy/redis.url").read_text())
    assert await primary(access, fleet) == fleet.servers[1].port
    assert await client.get("inferflux:{t}:x") == b"second"
    await replicated(client, "third")
    await client.aclose()


async def test_three_nats_servers_become_a_cluster_that_keeps_three_copies(
    tmp_path: Path, access: Path
) -> None:
    port, cluster_port, monitor_port = free_port(), free_port(), free_port()
    write_access(access, nats=",".join(f"{host}:{port}" for host in HOSTS), redis="valkey:6379")
    ports = {"4222": port, "6222": cluster_port, "8222": monitor_port}
    with ExitStack() as stack:
        for host in HOSTS:
            folder = tmp_path / host
            for source, target in (
                (ROOT / "deploy/nats/nats.conf", "etc/nats/inferflux.conf"),
                (ROOT / "deploy/nats/cluster.conf", "etc/nats/cluster.conf"),
                (access / "nats/users.conf", "access/users.conf"),
                (access / "nats/cluster.conf", "access/cluster.conf"),
            ):
                text = source.read_text().replace("0.0.0.0", host).replace('"/data"', f'"{folder}/data"')  # noqa: S104
                for inside, outside in ports.items():
                    text = text.replace(f":{inside}", f":{outside}")
                (folder / target).parent.mkdir(parents=True, exist_ok=True)
                (folder / target).write_text(text)
            command = [nats_command(1, tmp_path / "unused")[0], "-c", str(folder / "etc/nats/cluster.conf")]
            server = ServerProcess(
                [*command, "--name", f"nats-{host}"], port=port, name="nats-server", log_path=folder / "log"
            )
            server.start()
            stack.callback(server.kill)
        bus = await Bus.connect((access / "scheduler/nats.url").read_text(), name="test")
        async with asyncio.timeout(60):
            await bus.ensure_streams(ServiceSettings().stream_limits)
        assert await NatsCluster.replicas(bus, subjects.TOKENS_STREAM) == 3
        await bus.close()
