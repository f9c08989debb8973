"""The children of a process, by the Python module they run (Linux)."""

from __future__ import annotations

import psutil

ENGINE = "inferflux.worker.engine"
WITNESS = "inferflux.worker.processes.witness"


def child_of(pid: int, module: str) -> int | None:
    """The process id of the child that runs a module; None while there is none."""
    for child in psutil.Process(pid).children():
        if module in child.cmdline():
            return child.pid
    return None


def has_ended(process: psutil.Process) -> bool:
    """Whether it is gone, or waits for someone to take its exit status."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
