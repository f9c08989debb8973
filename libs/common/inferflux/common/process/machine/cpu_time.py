"""The CPU time of another process: how long it has worked, however busy the machine is."""

from __future__ import annotations

import time

# The most that a busy machine may hold a process up, in limits.
_MOST_HELD_UP = 5


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process has spent; 0 where the system does not tell: outside Linux."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3)
    except OSError:
        return 0.0


def is_late(*, worked_s: float, waited_s: float, limit_s: float) -> bool:
    """Return whether a process has worked for longer than a limit, or was held up for five times as long.

    Args:
        worked_s: seconds of CPU since it began, or of time where the system does not tell.
        waited_s: seconds of time since then.
    """
    return limit_s < max(worked_s, waited_s / _MOST_HELD_UP)
