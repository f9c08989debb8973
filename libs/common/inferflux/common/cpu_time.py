"""The CPU time of another process: how long it has worked, however busy the machine is."""

from __future__ import annotations

import time


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process has spent; 0 where the system does not tell: outside Linux."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3)
    except OSError:
        return 0.0
