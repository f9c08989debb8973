"""The CPU time that the processes of a stack spend, for each request of a load.

On a machine that others use as well this says more than tokens/s, which fall with every core that is taken
away. A process that waits longer for its turn does not compute longer.
"""

from __future__ import annotations

from collections.abc import Mapping

import psutil

from .calm import Run

CPU_MS = "cpu_ms_per_request"
"""The key of a run's CPU time by process, in ms per request."""


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process and its descendants have spent; 0 for one that is gone."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    return sum(_own_s(member) for member in family)


def _own_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def per_request_ms(
    before: Mapping[str, float], after: Mapping[str, float], requests: int
) -> dict[str, float]:
    """CPU time by process, in ms per request.

    Args:
        before, after: by process, seconds of CPU; a process that is not in both is left out.
    """
    each = max(1, requests)
    return {name: 1000 * (after[name] - then) / each for name, then in before.items() if name in after}


def with_cpu(run: Run, processes: Mapping[str, int], *, also_sent: int) -> Run:
    """The same run; its result says what these processes spent meanwhile, under `CPU_MS`.

    Args:
        processes: pids by name.
        also_sent: requests of the run that its result does not count, as those of its warm-up.
    """

    async def measured() -> dict[str, object]:
        before = {name: cpu_s(pid) for name, pid in processes.items()}
        result = await run()
        after = {name: cpu_s(pid) for name, pid in processes.items()}
        return {**result, CPU_MS: per_request_ms(before, after, int(result["requests"]) + also_sent)}

    return measured
