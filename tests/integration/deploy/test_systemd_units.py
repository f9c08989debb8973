"""The units of deploy/systemd as a host has them, but for the sandbox: systemd does not run here."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from harness.deploy import ROOT
from harness.inferctl import environment, run
from harness.servers import ServerProcess
from harness.worker import DEMO_MODEL

from inferflux.cli.doctor.facts.environment import parse
from inferflux.cli.doctor.facts.units import environment_of
from inferflux.cli.stack.servers import dying_with_parent, free_port, valkey_command
from inferflux.common.servers.access_files import write_access

UNITS = ROOT / "deploy/systemd"
SERVICES = ("policy", "scheduler", "worker", "gateway")
READY_S = 60.0


class Host:
    """A folder in place of a host's root: units, variables, access and state."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ports = {
            name: free_port() for name in ("nats", "monitor", "valkey", "grpc", "http", "keys", *SERVICES)
        }
        self.etc = root / "etc"
        nats, valkey = (f"127.0.0.1:{self.ports[name]}" for name in ("nats", "valkey"))
        write_access(self.etc / "access", nats=nats, redis=valkey)
        self._write_units()
        self._write_variables()

    def _write_units(self) -> None:
        for file in UNITS.glob("*.service"):
            text = (
                file.read_text()
                .replace("/etc/inferflux", str(self.etc))
                .replace("%S", str(self.root / "state"))
            )
            (self.root / file.name).write_text(text.replace("/opt/inferflux", str(ROOT)))
        text = (UNITS / "nats.conf").read_text().replace("/var/lib", str(self.root / "state"))
        text = text.replace(":4222", f":{self.ports['nats']}").replace(":8222", f":{self.ports['monitor']}")
        (self.etc / "nats.conf").write_text(text)

    def _write_variables(self) -> None:
        def listen(name: str) -> str:
            return f"127.0.0.1:{self.ports[name]}"

        metrics = {name: f"INFERFLUX_METRICS_LISTEN={listen(name)}\n" for name in SERVICES}
        policy = listen("keys")
        (self.etc / "inferflux.env").write_text(f"# All services.\nINFERFLUX_POLICY_ADDRESS={policy}\n")
        own = {
            "gateway": f"INFERFLUX_GATEWAY_LISTEN={listen('grpc')}\n"
            f"INFERFLUX_GATEWAY_HTTP_LISTEN={listen('http')}\n",
            "policy": f"INFERFLUX_POLICY_LISTEN={policy}\n",
            "worker": f"INFERFLUX_WORKER_MODEL_PATH={DEMO_MODEL}\n",
            "scheduler": "",
        }
        for name, lines in own.items():
            (self.etc / f"inferflux-{name}.env").write_text(lines + metrics[name])

    def unit(self, name: str) -> Path:
        return self.root / f"inferflux-{name}{'@0' if name == 'worker' else ''}.service"

    def command(self, name: str) -> list[str]:
        """The command of a unit, with its credentials in a folder."""
        text = next(self.root.glob(f"inferflux-{name}*.service")).read_text()
        folder = self.root / "credentials" / name
        folder.mkdir(parents=True)
        for credential in re.findall(r"^LoadCredential=(.*)$", text, re.MULTILINE):
            to, _, place = credential.partition(":")
            shutil.copy(place, folder / to)
        (self.root / "state" / f"inferflux-{name}").mkdir(parents=True)
        (line,) = re.findall(r"^ExecStart=(.*)$", text.replace("\\\n", " "), re.MULTILINE)
        return shlex.split(line.replace("%d", str(folder)))

    @contextmanager
    def servers(self) -> Iterator[None]:
        nats = ServerProcess(self.command("nats"), port=self.ports["nats"], name="nats-server")
        own = self.command("valkey")
        # The link that docs/hosts.md has made, and another port.
        binary = valkey_command(self.ports["valkey"], self.root / "unused")[0]
        command = [binary, *own[1:]]
        command[command.index("--port") + 1] = str(self.ports["valkey"])
        valkey = ServerProcess(command, port=self.ports["valkey"], name="valkey-server")
        try:
            nats.start()
            valkey.start()
            nats.wait_ready()
            valkey.wait_ready()
            yield
        finally:
            nats.kill()
            valkey.kill()

    @contextmanager
    def service(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self.root / f"{name}.log").open("wb") as log:
            command = dying_with_parent(self.command(name))
            variables = environment(environment_of(self.unit(name), parse))
            process = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['gateway']}/readyz", timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            return False


async def test_units_of_a_host_serve_and_doctor_finds_no_problem(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with host.servers(), ExitStack() as stack:
        processes = [stack.enter_context(host.service(name)) for name in SERVICES]
        try:
            async with asyncio.timeout(READY_S):
                while not await asyncio.to_thread(host.is_ready):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail("\n".join((tmp_path / f"{name}.log").read_text()[-2000:] for name in SERVICES))
        key = (tmp_path / "state/inferflux-policy/first.key").read_text().strip()
        client = {"INFERFLUX_ENDPOINT": f"127.0.0.1:{host.ports['grpc']}", "INFERFLUX_API_KEY": key}
        answer = await run("chat", "--temperature", "0", "What is the capital of France?", env=client)
        assert "Paris" in answer.stdout, answer.stderr
        for name in SERVICES:
            looked = await run("doctor", "--env-file", str(host.unit(name)), "--service", name, env={})
            assert looked.returncode == 0, looked.stdout
            assert key not in looked.stdout
        # The gateway first, as the units say.
        for process in reversed(processes):
            process.terminate()
            assert await asyncio.to_thread(process.wait, 45) == 0
