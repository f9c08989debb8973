"""inferctl as a process: run to its end, or left running; with a terminal or without."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import psutil
from harness.starting import start

COMMAND = (sys.executable, "-m", "inferflux.cli")
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[=>]|\x1b\][^\x07]*\x07|\r")
WAIT_S = 60.0
# A session leader takes the terminal on its stdin as its own, so that keys become signals.
_AT_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def environment(added: Mapping[str, str]) -> dict[str, str]:
    """This one, without what would send inferctl elsewhere."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("INFERFLUX_")}
    return {**inherited, "COLUMNS": "120", **added}


async def run(*arguments: str, env: Mapping[str, str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run to the end, without a terminal."""
    # Not by asyncio: uvloop forks, and beside threads of gRPC a child crashed before it became inferctl.
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = start("inferflux.cli", *arguments, env=environment(env), **pipes)
    try:
        out, err = await asyncio.wait_for(asyncio.to_thread(process.communicate, stdin.encode()), WAIT_S)
    except BaseException:
        process.kill()
        raise
    return subprocess.CompletedProcess(arguments, process.returncode or 0, out.decode(), err.decode())


class Terminal:
    """inferctl at a terminal of its own, 120 columns wide. Use as an async context manager."""

    def __init__(self, *arguments: str, env: Mapping[str, str]) -> None:
        self._arguments = arguments
        self._env = environment({**env, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"})
        self._master = -1
        self._raw = ""
        self._read_to = 0
        self._gained = asyncio.Event()
        self.process: subprocess.Popen[bytes]

    async def __aenter__(self) -> Self:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _AT_TERMINAL, *COMMAND, *self._arguments],
            env=self._env,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        os.set_blocking(self._master, False)
        asyncio.get_running_loop().add_reader(self._master, self._on_output)
        return self

    async def __aexit__(self, *exc: object) -> None:
        asyncio.get_running_loop().remove_reader(self._master)
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(TimeoutError):
                await self.exit_status(20.0)
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    @property
    def text(self) -> str:
        """All that was shown so far, without control sequences."""
        return _CONTROL.sub("", self._raw)

    async def see(self, expected: str, limit_s: float = WAIT_S) -> str:
        """Wait until `expected` (a regular expression) is shown after what was seen before; returns it."""
        try:
            async with asyncio.timeout(limit_s):
                while (found := re.search(expected, self.text[self._read_to :])) is None:
                    assert self.process.poll() is None or self._has_more(), f"ended: {self.text}"
                    self._gained.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._gained.wait(), 0.2)
        except TimeoutError:
            raise AssertionError(f"no {expected!r} in: {self.text[self._read_to :]}") from None
        self._read_to += found.end()
        return found.group()

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def press_ctrl_c(self) -> None:
        """As a terminal does it: a signal for the foreground process group."""
        self.type("\x03")

    async def exit_status(self, limit_s: float = WAIT_S) -> int:
        async with asyncio.timeout(limit_s):
            while (status := self.process.poll()) is None:
                await asyncio.sleep(0.02)
        return status

    def _has_more(self) -> bool:
        self._gained.clear()
        self._on_output()
        return self._gained.is_set()

    def _on_output(self) -> None:
        try:
            data = os.read(self._master, 65536)
        except BlockingIOError:
            return
        except OSError:  # the other end is closed
            asyncio.get_running_loop().remove_reader(self._master)
            return
        self._raw += data.decode(errors="replace")
        self._gained.set()


def marked(value: Path | str) -> list[int]:
    """Processes that carry `value` in their environment or command, as all of a stack do its directory."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            if str(value) in "\0".join([*process.environ().values(), *process.cmdline()]):
                found.append(process.pid)
    return [pid for pid in found if pid != os.getpid()]


async def all_gone(value: Path | str, limit_s: float = 15.0) -> None:
    """Wait until no process carries `value`.

    Raises:
        AssertionError: some still do.
    """
    try:
        async with asyncio.timeout(limit_s):
            while marked(value):
                await asyncio.sleep(0.05)
    except TimeoutError:
        left = [psutil.Process(pid).cmdline() for pid in marked(value)]
        raise AssertionError(f"left behind: {left}") from None
