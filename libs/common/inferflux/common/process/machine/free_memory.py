"""Memory that this process may still take, where the system tells (Linux)."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

from .cgroups import own_groups, read

_UNKNOWN = 1 << 60


def free_bytes(root: Path = Path("/")) -> int:
    """Bytes left to the machine or to the control groups of this process, whichever is least.

    Cached pages of files count as free: they go when memory is needed.
    """
    return min([_machine(root), *_groups(root)])


def limit_bytes(root: Path = Path("/")) -> int | None:
    """Bytes of the machine, or of the tightest control group of this process; None where nothing tells."""
    limits = [_machine(root, "MemTotal:")]
    for group in own_groups("memory", root):
        limit = read(group.folder / ("memory.max" if group.is_v2 else "memory.limit_in_bytes")).strip()
        limits += [int(limit)] if limit.isdigit() else []
    least = min(limits)
    return None if least >= _UNKNOWN else least


def _machine(root: Path, line_name: str = "MemAvailable:") -> int:
    for line in read(root / "proc/meminfo").splitlines():
        if line.startswith(line_name):
            return int(line.split()[1]) << 10
    return _UNKNOWN


def _groups(root: Path) -> Iterator[int]:
    """Bytes left to each control group of this process."""
    for group in own_groups("memory", root):
        if group.is_v2:
            yield _left(group.folder, "memory.max", "memory.current", "inactive_file")
        else:
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield _left(group.folder, *files)


def _left(group: Path, limit_file: str, used_file: str, cached_name: str) -> int:
    limit, used = read(group / limit_file).strip(), read(group / used_file).strip()
    if not limit.isdigit() or not used.isdigit():  # there is no such group, or it has no limit: `max`
        return _UNKNOWN
    stat = dict(line.split(" ", 1) for line in read(group / "memory.stat").splitlines() if " " in line)
    return max(int(limit) - int(used) + int(stat.get(cached_name, 0)), 0)


@contextlib.contextmanager
def at_most(n_bytes: int) -> Iterator[None]:
    """Let this process map `n_bytes` more and no more: what needs more fails, and ends nothing else.

    Nothing is bounded where the system does not say how much is mapped.
    """
    mapped = _mapped_bytes()
    if mapped is None or not hasattr(resource, "RLIMIT_AS"):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = mapped + n_bytes
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _mapped_bytes(statm: Path = Path("/proc/self/statm")) -> int | None:
    pages = read(statm).split()
    return int(pages[0]) * resource.getpagesize() if pages else None
