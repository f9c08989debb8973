"""Probes: short-lived children of the worker, the first to read a file that comes from elsewhere.

A file that breaks something breaks its probe, which has bounds of time and memory.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass

from inferflux.common.process.child.captured import Captured, cause_in
from inferflux.common.process.child.children import describe_end, wait_for_end
from inferflux.common.process.child.parent_death import exit_with_parent
from inferflux.common.process.child.process_limits import bound

# Address space of a probe, beside files that it maps.
MEMORY_BYTES = 3 << 30
TOO_MUCH = f"reading it takes more than {MEMORY_BYTES >> 30} GiB"
_NICENESS = 10


@dataclass(frozen=True, slots=True)
class Probed:
    """Result of a probe.

    Attributes:
        code: its exit code, -n for signal n.
        printed: its stdout.
        why: one line, why it ended where the code is not 0.
    """

    code: int
    printed: bytes
    why: str


async def run_probe(module: str, *args: str, limit_s: float) -> Probed:
    """Run a module of this package as a probe, to its end.

    Raises:
        TimeoutError: it took longer than `limit_s`, and was killed.
    """
    with Captured() as result, Captured() as stderr:
        process = subprocess.Popen(  # noqa: ASYNC220 - returns when the child has begun
            [sys.executable, "-m", f"inferflux.worker.processes.{module}", *args],
            stdin=subprocess.DEVNULL,
            stdout=result.fileno(),
            stderr=stderr.fileno(),
        )
        try:
            code = await asyncio.wait_for(wait_for_end(process), limit_s)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        why = cause_in(stderr.last_lines()) or f"the probe {describe_end(code)}"
        return Probed(code, result.read(), why)


def bound_probe(*, cpu_s: int, mapped_bytes: int = 0, computes: bool = False) -> None:
    """Bound this process, a probe, and have it end with its worker.

    Args:
        cpu_s: most processor time.
        mapped_bytes: of files, beside `MEMORY_BYTES` of its own.
        computes: whether it uses a processor for long: it then gives way to engines.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent(signal.SIGKILL)
    bound("RLIMIT_AS", MEMORY_BYTES + mapped_bytes, resource.RLIM_INFINITY)
    bound("RLIMIT_CPU", cpu_s, cpu_s)
    bound("RLIMIT_CORE", 0, 0)
    if computes:
        os.nice(_NICENESS)
