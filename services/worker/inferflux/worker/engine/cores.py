"""How many cores this process may keep busy: its CPU affinity, and the CPU quota of its container.

llama.cpp's threads meet at a barrier many times per step. A thread beyond the quota is throttled there, and
all others wait for it.
"""

from __future__ import annotations

import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def usable_cores(cgroups: Path = _CGROUPS, own_cgroups: Path = _OWN_CGROUPS) -> int:
    """Cores of the CPU affinity, or the whole cores of the CPU quota if that is less; at least 1."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # Linux alone has it.
        allowed = os.cpu_count() or 1
    return max(1, min([allowed, *(int(quota) for quota in _quotas(cgroups, own_cgroups))]))


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


def _quotas(cgroups: Path, own_cgroups: Path) -> list[float]:
    """The quotas of this process's cgroup and of all above it, in cores."""
    found = []
    for line in _read(own_cgroups).splitlines():
        # "0::/PATH" for v2; "ID:CONTROLLERS:/PATH" for v1.
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        is_v2 = controllers == ""
        if not is_v2 and "cpu" not in controllers.split(","):
            continue
        for root in (cgroups, cgroups / "unified") if is_v2 else (cgroups / "cpu", cgroups / controllers):
            found += [_quota_of(folder, is_v2=is_v2) for folder in _upwards(root, path)]
    return [quota for quota in found if quota is not None]


def _upwards(root: Path, path: str) -> list[Path]:
    """The folder of a cgroup and those above, down to the root.

    A container sees its own cgroup as the root, while /proc may still name the path on the host.
    """
    own = root / path.strip("/")
    return [own, *(folder for folder in own.parents if folder.is_relative_to(root))]


def _quota_of(folder: Path, *, is_v2: bool) -> float | None:
    if is_v2:
        return parse_v2_quota(_read(folder / "cpu.max"))
    return parse_v1_quota(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _read(path: Path) -> str:
    """What a file says; nothing where there is none."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
