"""A fleet that runs: hosts that start, die, stand still and come back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from inferflux.cli.reach.client import Client as AdminClient
from inferflux.cli.reach.target import Target
from inferflux.cli.stack import readiness
from inferflux.cli.stack.process import ManagedProcess
from inferflux.common.contract.errors import InferFluxError

from .clocks import shifted
from .errors import FleetError
from .layout import DEFAULTS, GATEWAYS, HOSTS, NATS, REDIS, SCHEDULERS, SERVERS, WORKERS, Layout
from .network import Network

_POLL_S = 0.05
_START_LIMIT_S = 90.0
_TAIL_LINES = 6
_ANSWER_LIMIT_S = 10.0
_STREAMS = re.compile(r"^inferflux_gateway_streams (\S+)", re.MULTILINE)
_STAGES = ((*NATS, *REDIS), (*GATEWAYS, *SCHEDULERS, *WORKERS))


class Fleet:
    """All hosts and what runs on them. Use as an async context manager, in a process of its own.

    Args:
        folder: where each host has its files.
        seed: of the network.
        env: of every service, beside the layout's defaults.
        say: told in a sentence of all that is done to a host.

    Attributes:
        network: cuts, delays and loses.
        env: of every service.
        clocks: by host, seconds that its wall clock is ahead from its next start on.
    """

    def __init__(
        self, folder: Path, seed: int, *, env: Mapping[str, str] | None = None, say: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._say = say
        self.env = {**DEFAULTS, **(env or {})}
        self.network = Network(HOSTS, seed, say=say)
        self.processes: dict[str, list[ManagedProcess]] = {}
        self.clocks: dict[str, float] = {}
        self.down: set[str] = set()

    @property
    def endpoints(self) -> list[str]:
        return [self.layout.endpoint(name) for name in GATEWAYS]

    @property
    def target(self) -> Target:
        """How an administrator calls it."""
        return Target(",".join(self.endpoints), self.layout.secrets.api_key)

    async def __aenter__(self) -> Self:
        self.network.__enter__()
        try:
            self.layout = Layout(self.network.hosts, self._folder, self.env)
            for name in SERVERS:
                folder = self._folder / name
                folder.mkdir(parents=True, exist_ok=True)
                self.processes[name] = [
                    ManagedProcess(spec, folder / f"{spec.kind}.log") for spec in self.layout.specs(name)
                ]
            for stage in _STAGES:
                for name in stage:
                    await self._start(name)
                await self.until_ready(stage)
            await self.until_whole()
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def pids(self, host: str) -> list[int]:
        """All processes that are in a host's namespace."""
        wanted = os.fstat(self.network.hosts[host].namespace).st_ino
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if (entry / "ns/net").stat().st_ino == wanted:
                        found.append(int(entry.name))
        return found

    async def kill(self, host: str) -> None:
        """As if its power was gone: nothing of it arrives any more, and all its processes end at once."""
        self.network.isolate(_power(host), [host])
        self.down.add(host)
        self._signal(host, signal.SIGKILL)
        for process in self.processes[host]:
            await process.wait()
        while self.pids(host):
            self._signal(host, signal.SIGKILL)
            await asyncio.sleep(0.01)

    async def start(self, host: str) -> None:
        """Start what was killed; returns when it is ready."""
        self.network.mend(_power(host))
        await self._start(host)
        self.down.discard(host)
        await self.until_ready([host])
        self._say(f"{host} is back")

    def stop(self, host: str) -> None:
        """All its processes stand still; its kernel answers as before."""
        self._say(f"{host} stands still")
        self._signal(host, signal.SIGSTOP)

    def go_on(self, host: str) -> None:
        self._signal(host, signal.SIGCONT)
        self._say(f"{host} goes on")

    async def until_ready(self, hosts: Iterable[str], limit_s: float = _START_LIMIT_S) -> None:
        """Return when all processes of these hosts are ready.

        Raises:
            FleetError: one has ended, or time is up; with the end of its log.
        """
        left = [(host, process) for host in hosts for process in self.processes[host]]
        deadline_s = time.monotonic() + limit_s
        why = ""
        while left:
            for host, process in list(left):
                if host in self.down:  # killed once more
                    left.remove((host, process))
                    continue
                if not process.is_running:
                    raise FleetError(f"{process.name} ended: {' | '.join(process.last_lines(_TAIL_LINES))}")
                is_ready, why = await readiness.ask(process.spec)
                if is_ready:
                    left.remove((host, process))
            if left and time.monotonic() > deadline_s:
                process = left[0][1]
                tail = " | ".join(process.last_lines(_TAIL_LINES))
                raise FleetError(f"{process.name} was not ready within {limit_s:g} s: {why} {tail}")
            if left:
                await asyncio.sleep(_POLL_S)

    async def until_whole(self, limit_s: float = _START_LIMIT_S) -> None:
        """Return when a gateway lists the model with all workers.

        Raises:
            FleetError: time is up.
        """
        deadline_s = time.monotonic() + limit_s
        said = "no gateway answers"
        async with AdminClient(self.target) as client:
            while time.monotonic() < deadline_s:
                try:
                    models = await client.models()
                    said = f"{[model.workers for model in models]} workers are listed"
                    if models and models[0].workers == len(WORKERS):
                        self.model = models[0].card
                        return
                except InferFluxError as error:
                    said = error.message
                await asyncio.sleep(_POLL_S)
        raise FleetError(f"the fleet was not whole within {limit_s:g} s: {said}")

    async def open_streams(self, gateway: str) -> int:
        """Token streams that a gateway has.

        Raises:
            FleetError: it does not say.
        """
        spec = self.processes[gateway][-1].spec
        async with asyncio.timeout(_ANSWER_LIMIT_S):
            reader, writer = await asyncio.open_connection(spec.host, spec.port)
            writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
            text = (await reader.read()).decode()
            writer.close()
        found = _STREAMS.search(text)
        if found is None:
            raise FleetError(f"{gateway} does not say how many streams it has")
        return int(float(found[1]))

    def died(self) -> list[ManagedProcess]:
        """Processes that have ended by themselves."""
        return [
            process
            for host, all_of in self.processes.items()
            if host not in self.down
            for process in all_of
            if not process.is_running
        ]

    async def _start(self, host: str) -> None:
        for process in self.processes[host]:
            process.spec = shifted(process.spec, self.clocks.get(host, 0.0))
            await process.start()

    def _signal(self, host: str, number: signal.Signals) -> None:
        for pid in self.pids(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _end(self) -> None:
        """No process outlives its host, and no host the run."""
        for host in SERVERS:
            if host in self.network.hosts:
                self._signal(host, signal.SIGKILL)
        for processes in self.processes.values():
            for process in processes:
                process.kill_group()
        self.network.__exit__()


def _power(host: str) -> str:
    return f"power of {host}"
