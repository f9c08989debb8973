"""The engine process as its worker sees it: started, watched, started again."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable

from inferflux.common.contract.models.model_roles import embeds
from inferflux.common.process import logs
from inferflux.common.process.child.captured import cause_in
from inferflux.common.process.child.children import describe_end, wait_for_end
from inferflux.common.process.child.frames import ParentEnd
from inferflux.common.process.tasks import is_set_within
from inferflux.v1 import engine_pb2
from inferflux.worker.engine.media.image_note import noted_in

from .engine_process import EMBEDDER, ENGINE, EngineProcess

_FIRST_BACKOFF_S = 0.1
_LONGEST_BACKOFF_S = 10.0
_STOP_WAIT_S = 2.0
# Engines one after the other that could not load a model which an engine before them had loaded.
_MOST_FAILED_LOADS = 5
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
# Parts of llama.cpp whose assertions fail when a device, or another machine, is gone.
_DEVICES = ("/ggml-rpc/", "/ggml-cuda/")

log = logs.get("worker.engine_host")

ReportHandler = Callable[[engine_pb2.EngineReport], Awaitable[None]]
DeathHandler = Callable[[str, str], Awaitable[None]]
StartEngine = Callable[[str], EngineProcess]


class EngineLoadError(Exception):
    """The engine could not load the model at its first start, or several could not load it again."""


class EngineHost:
    """Keeps one engine process running.

    Args:
        config: sent to every new engine.
        load_limit_s: an engine that has not loaded its model by then is killed.
        on_report: awaited for each report, in order.
        on_death: awaited as soon as the engine is gone, with the cause, and the object of the image that it
            crashed over; "" where it was another cause, or is not known.
        start: gives a process that runs a module and waits to be told what to load.
    """

    def __init__(
        self,
        config: engine_pb2.EngineConfig,
        on_report: ReportHandler,
        on_death: DeathHandler,
        *,
        load_limit_s: float,
        start: StartEngine = EngineProcess.start,
    ) -> None:
        self._start = start
        self._config = config
        self._module = EMBEDDER if embeds(config.role) else ENGINE
        self._load_limit_s = load_limit_s
        self._on_report = on_report
        self._on_death = on_death
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: ParentEnd[engine_pb2.EngineReport] | None = None
        self._stopping = asyncio.Event()
        self._was_ready = False
        self._killed_for = ""

    @property
    def pid(self) -> int | None:
        """The engine's process id, while it runs."""
        return self._process.pid if self._process else None

    def send(self, command: engine_pb2.EngineCommand) -> None:
        """Pass a command on. Without an engine it is lost, as every resident request is."""
        if self._channel is not None:
            self._channel.send(command)

    async def run(self) -> None:
        """Start the engine, and start it again whenever it dies, until `stop`.

        Raises:
            EngineLoadError: the first engine could not load the model, or several one after the other could
                not load it again.
        """
        backoff = _FIRST_BACKOFF_S
        failed_loads = 0
        while not self._stopping.is_set():
            loaded, why, killer = await self._run_once()
            if self._stopping.is_set():
                return
            if not self._was_ready:
                raise EngineLoadError(why)
            await self._on_death(why, killer)
            failed_loads = 0 if loaded else failed_loads + 1
            if failed_loads == _MOST_FAILED_LOADS:
                raise EngineLoadError(why)
            backoff = _FIRST_BACKOFF_S if loaded else min(backoff * 2, _LONGEST_BACKOFF_S)
            log.error("engine died, starting it again", why=why, backoff_s=backoff)
            await is_set_within(self._stopping, backoff)

    def kill(self, why: str) -> None:
        """End an engine that makes no progress; `why` is reported as the cause of its death."""
        if self._process is not None:
            self._killed_for = why
            self._process.kill()

    async def stop(self) -> None:
        """End the engine; its resident requests are gone."""
        self._stopping.set()
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            await _end(self._process)

    async def _run_once(self) -> tuple[bool, str, str]:
        """One engine's life: (whether it loaded the model, what ended it, the image that it crashed over)."""
        engine = self._start(self._module)
        try:
            loaded, why, code = await self._live(engine)
            lines = engine.stderr.last_lines()
            noted = noted_in(engine.note.read())
        finally:
            engine.close()
        if loaded and lines:
            sys.stderr.write("\n".join(lines) + "\n")
        killer = ""
        if not why:
            cause = cause_in(lines)
            why = _describe(code, cause)
            killer = noted if _is_crash(code, cause) else ""
        return loaded, why if loaded else self._naming_the_file(why), killer

    async def _live(self, engine: EngineProcess) -> tuple[bool, str, int]:
        """One process: (whether it loaded the model, why it could not or was killed, its exit code)."""
        self._process = engine.process
        self._channel = await ParentEnd.open(engine.socket, engine_pb2.EngineReport.FromString)
        self._channel.send(engine_pb2.EngineCommand(load=self._config))
        loaded = False
        load_error = ""
        late = f"the model was not loaded within {self._load_limit_s:g} s"
        timer = asyncio.get_running_loop().call_later(self._load_limit_s, self.kill, late)
        try:
            async for report in self._channel.messages():
                if report.HasField("load_error"):
                    load_error = report.load_error
                    continue
                if report.HasField("ready"):
                    timer.cancel()
                    loaded = self._was_ready = True
                await self._on_report(report)
        finally:
            timer.cancel()
            self._channel.close()
            self._channel = None
            code = await _end(self._process)
            self._process = None
        killed_for, self._killed_for = self._killed_for, ""
        return loaded, killed_for or load_error, code

    def _naming_the_file(self, why: str) -> str:
        path = self._config.model_path
        return why if why.startswith(path) else f"{path}: {why}"


async def _end(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process whose channel is closed, killing it if it does not leave by itself."""
    try:
        return await asyncio.wait_for(wait_for_end(process), _STOP_WAIT_S)
    except TimeoutError:
        process.kill()
        return await wait_for_end(process)


def _is_crash(code: int, cause: str) -> bool:
    """Return whether native code ended the process over what it computed: no other process, no device."""
    return -code in _CRASHES and not any(device in cause for device in _DEVICES)


def _describe(code: int, cause: str) -> str:
    end = f"the engine {describe_end(code)}"
    return f"{end}: {cause}" if cause else end
