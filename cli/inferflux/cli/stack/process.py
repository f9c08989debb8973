"""One process of the stack: started, asked to end, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from inferflux.common.process.child.children import wait_for_end

from .plan import ProcessSpec
from .servers import dying_with_parent

_TAIL_BYTES = 64 << 10


class ManagedProcess:
    """A process with its log. It leads a process group, so that its own children can be ended with it."""

    def __init__(self, spec: ProcessSpec, log_file: Path) -> None:
        self.spec = spec
        self.log_file = log_file
        self.is_held_down = False
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def pid(self) -> int:
        """Process id of the present or the last run.

        Raises:
            RuntimeError: it was never started.
        """
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    @property
    def was_started(self) -> bool:
        return self._process is not None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self._started_at

    async def start(self) -> None:
        """Start it; what it prints is appended to its log.

        Raises:
            RuntimeError: it runs already.
        """
        if self.is_running:
            raise RuntimeError(f"{self.name} runs already")
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - returns when the child has begun
                dying_with_parent(self.spec.command),
                env={**os.environ, **self.spec.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal is the supervisor's to pass on
            )
        if self.spec.cpus and hasattr(os, "sched_setaffinity"):
            # It is still one thread that is about to exec: all that it starts inherits this.
            os.sched_setaffinity(self._process.pid, self.spec.cpus)
        self._started_at = time.monotonic()

    async def wait(self) -> int:
        """Wait for its end; returns its exit code, -n for signal n."""
        if self._process is None:
            return 0
        return await wait_for_end(self._process)

    async def end(self, limit_s: float) -> bool:
        """SIGTERM, and SIGKILL `limit_s` later and for what it left behind. True if it went by itself."""
        if self._process is None:
            return True
        self.signal(signal.SIGTERM)
        is_gone = await self._is_gone_within(limit_s)
        self.kill_group()
        await wait_for_end(self._process)
        return is_gone

    def signal(self, number: signal.Signals) -> None:
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_group(self) -> None:
        """SIGKILL for it and for what it started; a group's id is not reused while the group has members."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def last_lines(self, count: int) -> list[str]:
        """The end of its log."""
        try:
            with self.log_file.open("rb") as file:
                file.seek(max(0, self.log_file.stat().st_size - _TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return []
        return [line for line in lines if line.strip()][-count:]

    async def _is_gone_within(self, limit_s: float) -> bool:
        if self._process is None:
            return True
        try:
            await asyncio.wait_for(wait_for_end(self._process), limit_s)
        except TimeoutError:
            return False
        return True
