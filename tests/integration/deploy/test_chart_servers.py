"""Servers as the Helm chart starts them: they take what it gives them, over a restart and new passwords."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
import redis.exceptions
from harness.chart_release import Release, lay_out
from harness.deploy import ROOT
from harness.helm import needs_helm
from harness.nats_cluster import NatsCluster
from harness.redis_sentinel import replicated
from harness.servers import ServerProcess

from inferflux.cli.stack.cert_files import ca_file
from inferflux.cli.stack.cert_files import files_of as cert_files_of
from inferflux.cli.stack.certificates import write_certificates
from inferflux.cli.stack.servers import free_port, nats_command, valkey_command
from inferflux.common.bus import Bus
from inferflux.common.contract import subjects
from inferflux.common.process.settings import ServiceSettings
from inferflux.common.process.tls import TlsFiles
from inferflux.common.redis import store
from inferflux.common.servers.fleet_files import SERVICE

pytestmark = needs_helm

ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")


class ValkeyFleet:
    """Two servers and three sentinels, each started by the command of its pod."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.places = {f"r-inferflux-valkey-{i}": (ADDRESSES[i], free_port()) for i in range(2)}
        self.places |= {f"r-inferflux-sentinel-{i}": (ADDRESSES[i], free_port()) for i in range(3)}
        binary = Path(valkey_command(1, folder / "unused")[0])
        self._path = f"{binary.parent}:{os.environ['PATH']}"
        self.processes = {name: self._process(name) for name in self.places}

    def _process(self, pod: str) -> ServerProcess:
        folder = self._folder / pod
        folder.mkdir()
        script = folder / "start.sh"
        return ServerProcess(
            ["/bin/sh", "-e", str(script)],
            port=self.places[pod][1],
            name="valkey-server",
            log_path=folder / "log",
        )

    def give(self, release: Release) -> None:
        """Lay out what pods are given: their scripts, and the files of their Secrets."""
        for pod, (address, port) in self.places.items():
            component = pod.split("-")[2]
            made, folder = release.pod(component), self._folder / pod
            files = release.files(component)
            name = f"{address}.conf"
            known = {"valkey": "6379", "sentinel": "26379"}[component]
            text = files[name].replace(f"port {known}\n", f"port {port}\n")
            # Its host is this machine, which others are on.
            files[name] = f"bind {address} 127.0.0.1\n{text}"
            lay_out(folder / "access", files)
            (folder / "data").mkdir(exist_ok=True)
            script = made.container["command"][2].replace("/access/", f"{folder}/access/")
            script = script.replace(f"$POD_NAME.r-inferflux-{component}", address)
            (folder / "start.sh").write_text(f"PATH={self._path}\ncd {folder}/data\n{script}")

    def start(self) -> None:
        for process in self.processes.values():
            process.start()
        for process in self.processes.values():
            process.wait_ready()

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()

    async def told(self, release: Release, sentinel: int = 0) -> Any:
        """What a sentinel says of the primary."""
        address, port = self.places[f"r-inferflux-sentinel-{sentinel}"]
        password = release.files("sentinel")["health.password"]
        async with redis.asyncio.Redis(host=address, port=port, password=password) as client:
            masters: Any = await client.sentinel_masters()
        return masters[SERVICE]

    async def know_each_other(self, release: Release) -> None:
        """Return when each sentinel knows the others and the replica: it learns of one within 10 s."""
        async with asyncio.timeout(60):
            for sentinel in range(3):
                while True:
                    said = await self.told(release, sentinel)
                    if (said["num-slaves"], said["num-other-sentinels"]) == (1, 2):
                        break
                    await asyncio.sleep(0.05)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[ValkeyFleet]:
    made = ValkeyFleet(tmp_path)
    try:
        yield made
    finally:
        made.kill()


async def test_who_is_the_primary_outlives_a_restart_with_new_passwords(fleet: ValkeyFleet) -> None:
    first, second = Release(fleet.places, {}), Release(fleet.places, {})
    fleet.give(first)
    fleet.start()
    client = store.connect(first.files("policy")["redis.url"])
    await replicated(client, "before")
    await fleet.know_each_other(first)
    fleet.processes["r-inferflux-valkey-0"].kill()
    promoted = fleet.places["r-inferflux-valkey-1"][1]
    async with asyncio.timeout(60):
        while (await fleet.told(first))["port"] != promoted:
            await asyncio.sleep(0.05)
    fleet.processes["r-inferflux-valkey-0"].start()
    await replicated(client, "after")
    await client.aclose()
    fleet.kill()
    fleet.give(second)
    fleet.start()
    assert (await fleet.told(second))["port"] == promoted
    client = store.connect(second.files("policy")["redis.url"])
    assert await client.get("inferflux:{t}:x") == b"after"
    await replicated(client, "with new passwords")
    await client.aclose()
    address, port = fleet.places["r-inferflux-valkey-1"]
    user, _, rest = first.files("policy")["redis.url"].partition("://")[2].partition(":")
    async with redis.asyncio.Redis(
        host=address, port=port, username=user, password=rest.partition("@")[0]
    ) as old:
        with pytest.raises(redis.exceptions.AuthenticationError):
            await old.ping()


class NatsServers:
    """Three servers, each started with the arguments of its pod, over TLS."""

    def __init__(self, folder: Path) -> None:
        self.places = {f"r-inferflux-nats-{i}": (ADDRESSES[i], free_port()) for i in range(3)}
        values = {"tls": {"enabled": True}, "nats": {"tokenTenants": ["acme"]}}
        self.release = Release(self.places, values)
        write_certificates(folder / "tls", hosts=ADDRESSES, days=1)
        self._folder = folder
        cert, key = cert_files_of(folder / "tls", "scheduler")
        self.tls = TlsFiles(cert, key, ca_file(folder / "tls"))
        ports = {name: free_port() for name in ("cluster", "monitor")}
        self.monitors = {
            pod: f"http://{address}:{ports['monitor']}" for pod, (address, _) in self.places.items()
        }
        self.processes = {pod: self._process(pod, ports) for pod in self.places}

    def _process(self, pod: str, ports: dict[str, int]) -> ServerProcess:
        folder, (address, port) = self._folder / pod, self.places[pod]
        cert, key = cert_files_of(self._folder / "tls", "nats")
        texts = {
            "etc/nats/inferflux.conf": (ROOT / "deploy/nats/nats.conf").read_text(),
            "etc/nats/cluster.conf": (ROOT / "deploy/nats/cluster.conf").read_text(),
            **{f"access/{name}": text for name, text in self.release.files("nats").items()},
        }
        for file, given in texts.items():
            text = given.replace("0.0.0.0", address).replace('"/data"', f'"{folder}/data"')  # noqa: S104
            for known, used in ((4222, port), (6222, ports["cluster"]), (8222, ports["monitor"])):
                text = text.replace(f":{known}", f":{used}")
            for name, path in (("tls.crt", cert), ("tls.key", key), ("ca.crt", ca_file(cert.parent))):
                text = text.replace(f'"/tls/{name}"', f'"{path}"')
            lay_out((folder / file).parent, {Path(file).name: text})
        arguments = [
            word.replace("$(POD_NAME)", pod).replace("/etc/nats", f"{folder}/etc/nats")
            for word in self.release.pod("nats").container["args"]
        ]
        binary = nats_command(1, self._folder / "unused")[0]
        return ServerProcess([binary, *arguments], port=port, name="nats-server", log_path=folder / "log")

    async def answers(self, pod: str, probe: str) -> None:
        """Return when a probe of the pod is content."""
        url = self.monitors[pod] + self.release.pod("nats").container[probe]["httpGet"]["path"]
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(_is_ok, url):
                await asyncio.sleep(0.05)

    def leader(self) -> str:
        """Pod of the server that leads the cluster of JetStream."""
        with urllib.request.urlopen(f"{self.monitors['r-inferflux-nats-0']}/jsz", timeout=5) as answer:  # noqa: S310
            return str(json.load(answer)["meta_cluster"]["leader"])


def _is_ok(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


async def test_nats_servers_are_a_cluster_over_tls_and_one_that_ends_has_others_lead_first(
    tmp_path: Path,
) -> None:
    servers = NatsServers(tmp_path)
    with ExitStack() as stack:
        for process in servers.processes.values():
            process.start()
            stack.callback(process.kill)
        for pod in servers.places:
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                await servers.answers(pod, probe)
        url = servers.release.files("scheduler")["nats.url"]
        assert url.startswith("tls://")
        bus = await Bus.connect(url, name="test", tls=servers.tls)
        async with asyncio.timeout(60):
            await bus.ensure_streams(ServiceSettings().stream_limits)
        assert await NatsCluster.replicas(bus, subjects.TOKENS_STREAM) == 3
        await bus.close()
        logs = {pod: tmp_path / pod / "log" for pod in servers.places}
        leader = await asyncio.to_thread(servers.leader)
        process = servers.processes[leader]
        (binary, *_) = process.command
        signalled = servers.release.pod("nats").container["lifecycle"]["preStop"]["exec"]["command"]
        command = [binary, *(word.replace("ldm=1", f"ldm={process.pid}") for word in signalled[1:])]
        subprocess.run(command, check=True)  # noqa: ASYNC221 - returns at once
        # Kubernetes sends it once that command has ended.
        os.kill(process.pid, signal.SIGTERM)
        async with asyncio.timeout(60):
            while process.is_running:
                await asyncio.sleep(0.05)
        left = logs[leader].read_text().partition("Entering lame duck mode")[2]
        assert "new metadata leader: " in left.partition("Initiating JetStream Shutdown")[0]
        others = ",".join(each for each in url.split(",") if servers.places[leader][0] not in each)
        bus = await Bus.connect(others, name="test", tls=servers.tls)
        async with asyncio.timeout(60):
            await bus.ensure_streams(ServiceSettings().stream_limits)
        await bus.close()
