"""docker-compose.yml without a container engine: each service as a process that sees what its image holds.

An image's packages become a virtual environment with just the distributions its requirements file pins
(linked, not installed), its COPY lines a folder, its ENV and the compose file's `environment` the
environment, its CMD the command. Hosts and ports become free ports of loopback.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

from harness.deploy import ROOT, Stage, read_compose, read_dockerfile

from inferflux.cli.stack.servers import dying_with_parent, free_port, nats_command, valkey_command

_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==", re.MULTILINE)


class ImageProcess:
    """One service of docker-compose.yml."""

    def __init__(
        self, name: str, command: list[str], environment: Mapping[str, str], directory: Path
    ) -> None:
        self.name = name
        self.command = command
        self.environment = dict(environment)
        self.directory = directory
        self.log_path = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                dying_with_parent(self.command),
                env=self.environment,
                cwd=self.directory,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def is_healthy(self, check: list[str]) -> bool:
        """Run the image's health check as the engine would."""
        asked = subprocess.run(check, env=self.environment, capture_output=True, check=False, timeout=10)
        return asked.returncode == 0

    def stop(self, timeout_s: float) -> int:
        """SIGTERM; the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float) -> int:
        """Wait for its end; the exit status."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class ComposeStack:
    """Every service that starts without a profile, as processes below `directory`."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        services = read_compose(environment)["services"]
        self.services = {name: s for name, s in services.items() if not s.get("profiles")}
        self._environments: dict[tuple[str, ...], Path] = {}
        self._ports: dict[tuple[str, str], int] = {}
        self.processes: dict[str, ImageProcess] = {}

    def port(self, service: str, inside: int) -> int:
        """The port of this machine that stands for a port of a service."""
        return self._ports.setdefault((service, str(inside)), free_port())

    def in_order(self) -> list[str]:
        """The services, each after those it depends on."""
        order: list[str] = []

        def add(name: str) -> None:
            for needed in self.services[name].get("depends_on", ()):
                if needed in self.services:
                    add(needed)
            if name not in order:
                order.append(name)

        for name in self.services:
            add(name)
        return order

    def make(self, name: str) -> ImageProcess:
        """The process of a service, not started yet."""
        directory = self._directory / name
        directory.mkdir()
        if name == "nats":
            process = ImageProcess(name, self._nats(directory), {}, directory)
        elif name == "valkey":
            process = ImageProcess(name, self._valkey(directory), {}, directory)
        elif name == "access":
            process = self._access(directory)
        else:
            process = self._ours(name, directory)
        self.processes[name] = process
        return process

    def health_check(self, name: str) -> list[str]:
        """The health check of a service of ours as a command."""
        image = self._stages(name)[-1]
        words = re.findall(r'"([^"]*)"', image.healthcheck)
        return [str(self._venv(name) / "bin" / words[0]), *words[1:]]

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()

    def _stages(self, name: str) -> list[Stage]:
        return read_dockerfile(ROOT / self.services[name]["build"]["dockerfile"])

    def _nats(self, directory: Path) -> list[str]:
        text = (ROOT / "deploy/nats/nats.conf").read_text().replace("0.0.0.0", "127.0.0.1")  # noqa: S104
        text = text.replace('"/data"', f'"{directory}"')
        for inside in (4222, 8222):
            text = text.replace(f":{inside}", f":{self.port('nats', inside)}")
        config = directory / "inferflux.conf"
        users = os.path.relpath(self.volume("nats") / "users.conf", directory)
        config.write_text(text.replace("../../access/users.conf", users))
        return [nats_command(1, directory / "unused")[0], "-c", str(config)]

    def _valkey(self, directory: Path) -> list[str]:
        command = self.services["valkey"]["command"]
        binary = valkey_command(1, directory)[0]
        where = ["--bind", "127.0.0.1", "--port", str(self.port("valkey", 6379)), "--dir", str(directory)]
        return [binary, *(self._local("valkey", "", word) for word in command[1:]), *where]

    def _access(self, directory: Path) -> ImageProcess:
        """What makes the users; its volumes are folders of one folder here."""
        image = self._ours("access", directory)
        self._access_folder.mkdir()
        words = self.services["access"]["command"][1:]
        image.command = [image.command[0], *(self._local("access", "_URL", word) for word in words)]
        return image

    def volume(self, name: str) -> Path:
        """What a service sees as /access."""
        return self._access_folder if name == "access" else self._access_folder / name

    @property
    def _access_folder(self) -> Path:
        return self._directory / "volumes"

    def _ours(self, name: str, directory: Path) -> ImageProcess:
        image = self._stages(name)[-1]
        for sources, target in image.copies:
            for source in sources:
                shutil.copytree(ROOT / source, directory / target.lstrip("/"), dirs_exist_ok=True)
        said = image.env | self.services[name].get("environment", {})
        environment = {key: self._local(name, key, value) for key, value in said.items()}
        environment["PATH"] = f"{self._venv(name) / 'bin'}:{os.environ['PATH']}"
        environment["PYTHONPATH"] = str(directory / image.env["PYTHONPATH"].lstrip("/"))
        command = [str(self._venv(name) / "bin" / image.command[0]), *image.command[1:]]
        return ImageProcess(name, command, environment, directory)

    def _local(self, name: str, variable: str, value: str) -> str:
        """A value of the environment with this machine's ports and paths."""
        if variable.endswith("_LISTEN"):
            return f"127.0.0.1:{self.port(name, int(value.rpartition(':')[2]))}"
        if value.startswith("/models/"):
            return str(ROOT / value.lstrip("/"))
        if value.startswith("/access"):
            return str(self.volume(name) / value.removeprefix("/access").lstrip("/"))
        if variable.endswith(("_URL", "_ADDRESS")):
            return re.sub(r"([a-z]+):(\d+)", lambda m: f"127.0.0.1:{self.port(m[1], int(m[2]))}", value)
        return value

    def _venv(self, name: str) -> Path:
        """A virtual environment with what the image's requirements files pin, and nothing else."""
        requirements = tuple(source for sources, _ in self._stages(name)[0].copies for source in sources)
        if requirements not in self._environments:
            path = self._directory / "-".join(("venv", *(Path(file).stem for file in requirements)))
            venv.create(path, with_pip=False, symlinks=True)
            site = path / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
            for file in requirements:
                for pinned in _PINNED.findall((ROOT / file).read_text()):
                    link(pinned, site)
            self._environments[requirements] = path
        return self._environments[requirements]


def link(distribution: str, site: Path) -> None:
    """Make what a distribution installed importable from `site`; one for other Pythons is not installed."""
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return
    tops = {file.parts[0] for file in found.files or () if ".." not in file.parts}
    for top in tops - {"__pycache__", "bin", "lib", "include"}:
        if not (site / top).exists():
            (site / top).symlink_to(Path(str(found.locate_file(top))))
