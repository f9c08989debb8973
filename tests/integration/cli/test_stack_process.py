"""A supervised process, with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from inferflux.cli.stack.plan import ProcessSpec
from inferflux.cli.stack.process import ManagedProcess

Starter = Callable[..., Awaitable[ManagedProcess]]

STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    started: list[ManagedProcess] = []

    async def starter(code: str, cpus: frozenset[int] | None = None) -> ManagedProcess:
        spec = ProcessSpec("it", "it", (sys.executable, "-c", code), {"ADDED": "yes"}, 0, cpus)
        process = ManagedProcess(spec, tmp_path / "it.log")
        await process.start()
        started.append(process)
        return process

    yield starter
    for process in started:
        process.kill_group()
        await process.wait()


async def printed(process: ManagedProcess) -> str:
    """Its first line, once there is one."""
    while not (lines := process.last_lines(1)):
        assert process.is_running
        await asyncio.sleep(0.01)
    return lines[0]


async def test_it_logs_what_is_printed_and_sees_its_environment(start: Starter) -> None:
    process = await start("import os, sys; print(os.environ['ADDED']); sys.exit(3)")
    assert await process.wait() == 3
    assert process.last_lines(5) == ["yes"]
    assert not process.is_running


async def test_it_is_ended_by_sigterm(start: Starter) -> None:
    process = await start("import time; print('up', flush=True); time.sleep(600)")
    await printed(process)
    assert await process.end(10.0)
    assert await process.wait() == -15


async def test_a_stubborn_one_is_killed_after_the_limit(start: Starter) -> None:
    process = await start(STUBBORN)
    await printed(process)
    assert not await process.end(0.2)
    assert await process.wait() == -9


async def test_what_it_started_ends_with_it(start: Starter) -> None:
    process = await start(PARENT)
    child = psutil.Process(int(await printed(process)))
    await process.end(10.0)
    async with asyncio.timeout(10):
        # Where nothing reaps processes without a parent, an ended one stays as a zombie.
        with contextlib.suppress(psutil.NoSuchProcess):
            while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
                await asyncio.sleep(0.01)


async def test_ctrl_c_in_the_terminal_does_not_reach_it(start: Starter) -> None:
    process = await start("import time; print('up', flush=True); time.sleep(600)")
    await printed(process)
    assert os.getpgid(process.pid) == process.pid != os.getpgid(0)


async def test_it_stays_on_its_cpus(start: Starter) -> None:
    one = min(os.sched_getaffinity(0))
    process = await start("import os; print(sorted(os.sched_getaffinity(0)))", frozenset({one}))
    assert await printed(process) == f"[{one}]"
    await process.wait()
