"""How much memory this process may still take (Linux)."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

_UNKNOWN = 1 << 60


def free_bytes(root: Path = Path("/")) -> int:
    """What is left to the machine or to the control groups of this process, whichever is least.

    Cached pages of files count as free: they go when memory is needed.
    """
    return min([_machine(root), *_groups(root)])


def _machine(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return _UNKNOWN


def _groups(root: Path) -> Iterator[int]:
    """What is left to each control group, of version 1 and 2. A container sees its own group as the root."""
    top = root / "sys/fs/cgroup"
    yield _left(top, "memory.max", "memory.current", "inactive_file")
    yield _left(top / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    for line in _read(root / "proc/self/cgroup").splitlines():
        _number, controllers, path = line.split(":", 2)
        group = path.strip("/")
        if not controllers:
            yield _left(top / group, "memory.max", "memory.current", "inactive_file")
        elif controllers == "memory":
            yield _left(
                top / "memory" / group,
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )


def _left(group: Path, limit_file: str, used_file: str, cached_name: str) -> int:
    limit, used = _read(group / limit_file).strip(), _read(group / used_file).strip()
    if not limit.isdigit() or not used.isdigit():  # there is no such group, or it has no limit: `max`
        return _UNKNOWN
    stat = dict(line.split(" ", 1) for line in _read(group / "memory.stat").splitlines() if " " in line)
    return max(int(limit) - int(used) + int(stat.get(cached_name, 0)), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@contextlib.contextmanager
def at_most(n_bytes: int) -> Iterator[None]:
    """Let this process map `n_bytes` more and no more: what needs more fails, and ends nothing else."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _mapped_bytes() + n_bytes
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _mapped_bytes() -> int:
    pages = int((_read(Path("/proc/self/statm")) or "0").split()[0])
    return pages * resource.getpagesize()
