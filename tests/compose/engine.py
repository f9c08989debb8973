"""`docker` and `docker compose`, as far as the tests ask and break things with them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVICES = ("nats", "valkey", "policy", "scheduler", "worker", "gateway")
_COMMAND_LIMIT_S = 180.0


# It makes the users of NATS and Valkey, once.
_ENDS = "access"


class CommandError(AssertionError):
    """A command failed; says what it wrote."""


async def run(*command: str, environment: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """What a command wrote to stdout.

    Raises:
        CommandError: it ended with another status than 0, or not in time.
    """
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, cwd=cwd, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    try:
        async with asyncio.timeout(_COMMAND_LIMIT_S):
            stdout, stderr = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise CommandError(f"{' '.join(command)}: not over after {_COMMAND_LIMIT_S:g} s") from None
    if process.returncode:
        said = (stdout + stderr).decode(errors="replace").strip()
        raise CommandError(f"{' '.join(command)}: status {process.returncode}\n{said[-4000:]}")
    return stdout.decode().strip()


@dataclass(frozen=True, slots=True)
class Container:
    """One container of the project."""

    id: str
    service: str

    async def inspect(self) -> dict[str, Any]:
        """What the engine says of it now."""
        (found,) = json.loads(await run("docker", "inspect", self.id))
        described: dict[str, Any] = found
        return described

    async def pid(self) -> int:
        """Process 1 of it, as this machine numbers it."""
        return int((await self.inspect())["State"]["Pid"])

    async def is_healthy(self) -> bool:
        state = (await self.inspect())["State"]
        return bool(state["Running"]) and state.get("Health", {}).get("Status") == "healthy"

    async def until_healthy(self, limit_s: float) -> float:
        """Wait for its health check; the seconds that took."""
        began = time.monotonic()
        while not await self.is_healthy():
            if time.monotonic() - began > limit_s:
                logs = await run("docker", "logs", "--tail", "5", self.id)
                raise AssertionError(f"{self.service} is not healthy after {limit_s:g} s: {logs}")
            await asyncio.sleep(0.2)
        return time.monotonic() - began

    async def execute(self, *command: str) -> str:
        """Run a command inside."""
        return await run("docker", "exec", self.id, *command)

    async def interface(self) -> str:
        """This machine's end of its cable: a veth of one of the engine's bridges, never anything else."""
        inside = await run("nsenter", "--target", str(await self.pid()), "--net", "ip", "-oneline", "link")
        peer = re.search(r"@if(\d+):", inside)
        assert peer is not None, f"{self.service} has no cable: {inside}"
        outside = await run("ip", "-oneline", "link", "show", "type", "veth")
        for line in outside.splitlines():
            found = re.match(rf"{peer[1]}: (veth[0-9a-f]+)@.* master br-", line)
            if found:
                return found[1]
        raise AssertionError(f"no veth of {self.service} among: {outside}")


class Compose:
    """One project of `docker compose`.

    Args:
        directory: of docker-compose.yml.
        extra: more compose files, which change the first.
        environment: what the compose files are filled in with.
    """

    def __init__(
        self, project: str, directory: Path, *, extra: Sequence[Path], environment: Mapping[str, str]
    ) -> None:
        self.project = project
        self.network = f"{project}_default"
        self._directory = directory
        self._extra = list(extra)
        self._environment = os.environ | dict(environment)

    def with_files(self, *extra: Path) -> Compose:
        """The same project with more compose files."""
        return Compose(
            self.project, self._directory, extra=[*self._extra, *extra], environment=self._environment
        )

    def with_environment(self, **environment: str) -> Compose:
        """The same project with other variables."""
        return Compose(
            self.project, self._directory, extra=self._extra, environment=self._environment | environment
        )

    async def __call__(self, *words: str) -> str:
        """`docker compose WORDS`; what it wrote to stdout."""
        return await run(*self._command(*words), environment=self._environment, cwd=self._directory)

    async def build(self) -> None:
        """Build every image, and show how far that is: it may take ten minutes."""
        process = await asyncio.create_subprocess_exec(
            *self._command("build"), env=self._environment, cwd=self._directory, stdin=DEVNULL
        )
        assert await process.wait() == 0, "docker compose build failed"

    async def up(self) -> float:
        """Start what does not run and wait until everything is healthy; the seconds that took."""
        began = time.monotonic()
        await self("up", "--detach", "--no-build", "--wait", "--wait-timeout", "150")
        return time.monotonic() - began

    async def down(self, *words: str) -> float:
        """Take everything down in order; the seconds that took."""
        began = time.monotonic()
        await self("down", *words)
        return time.monotonic() - began

    async def containers(self, service: str = "") -> list[Container]:
        """The project's containers, those that do not run too, by number; not the one that made passwords
        and has ended."""
        labels = [f"com.docker.compose.project={self.project}"]
        labels += [f"com.docker.compose.service={service}"] if service else []
        filters = [word for label in labels for word in ("--filter", f"label={label}")]
        shown = '{{.Names}} {{.ID}} {{.Label "com.docker.compose.service"}}'
        rows = await run("docker", "ps", "--all", *filters, "--format", shown)
        found = (Container(row.split()[1], row.split()[2]) for row in sorted(rows.splitlines()))
        return [container for container in found if container.service != _ENDS]

    def _command(self, *words: str) -> list[str]:
        files = [word for file in ("docker-compose.yml", *self._extra) for word in ("-f", str(file))]
        return ["docker", "compose", "--project-name", self.project, *files, *words]


async def leading(schedulers: Sequence[Container]) -> Container:
    """The scheduler that leads."""
    ask = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9090/metrics').read().decode())"
    async with asyncio.timeout(20):
        while True:
            for scheduler in schedulers:
                metrics = await scheduler.execute("python", "-c", ask)
                if re.search(r"^inferflux_scheduler_is_leader\S* 1\.0$", metrics, re.MULTILINE):
                    return scheduler
            await asyncio.sleep(0.2)
