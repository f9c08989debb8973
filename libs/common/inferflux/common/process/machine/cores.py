"""Number of cores that this process may keep busy: its CPU affinity, and the CPU quota of its container.

llama.cpp's threads meet at a barrier many times per step. A thread beyond the quota is throttled there, and
all others wait for it.
"""

from __future__ import annotations

import os
from pathlib import Path

from .cgroups import Group, own_groups, read


def usable_cores(root: Path = Path("/")) -> int:
    """Cores of the CPU affinity, or the whole cores of the CPU quota if that is less; at least 1."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # Linux alone has it.
        allowed = os.cpu_count() or 1
    return max(1, min([allowed, *(int(quota) for quota in _quotas(root))]))


def parse_v2_quota(cpu_max: str) -> float | None:
    """Cores of a `cpu.max` file, "QUOTA PERIOD" in microseconds; None without a quota."""
    quota, _, period = cpu_max.strip().partition(" ")
    return _cores(quota, period)


def parse_v1_quota(cfs_quota_us: str, cfs_period_us: str) -> float | None:
    """Cores of the two files of cgroup v1; None without a quota, which is -1 there."""
    return _cores(cfs_quota_us.strip(), cfs_period_us.strip())


def _cores(quota: str, period: str) -> float | None:
    if not (quota.isdecimal() and period.isdecimal()) or int(quota) == 0 or int(period) == 0:
        return None
    return int(quota) / int(period)


def _quotas(root: Path) -> list[float]:
    """The quotas of this process's control groups, in cores."""
    found = [_quota_of(group) for group in own_groups("cpu", root)]
    return [quota for quota in found if quota is not None]


def _quota_of(group: Group) -> float | None:
    folder = group.folder
    if group.is_v2:
        return parse_v2_quota(read(folder / "cpu.max"))
    return parse_v1_quota(read(folder / "cpu.cfs_quota_us"), read(folder / "cpu.cfs_period_us"))
