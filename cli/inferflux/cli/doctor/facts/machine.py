"""Disks, memory, shared memory and limits of this machine and this user."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from inferflux.cli.doctor.seen import Files, Folder, Memory, SharedMemory
from inferflux.cli.stack.store import takes_writes
from inferflux.common.process.machine.free_memory import limit_bytes

from .children import ChildError, ask

_PLAN = "inferflux.worker.files.plan"
_SHM = Path("/dev/shm")  # noqa: S108 - nothing is written there
_FOLDERS = "ifx_kv_*/*/[0-9]*"
_LOCK = "lock"


def folder(use: str, path: Path, wanted_bytes: int = 0) -> Folder:
    """A folder, or where it would be made."""
    try:
        place = next(each for each in (path, *path.absolute().parents) if each.exists())
        if not place.is_dir():
            return Folder(use, path, f"{place} is no folder")
        free = shutil.disk_usage(place).free
        failure = "" if takes_writes(place) else _why(place)
    except OSError as error:
        return Folder(use, path, error.strerror or "it cannot be read")
    return Folder(use, path, failure, free, wanted_bytes, _size(path))


def _why(place: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=place):
            return "the disk is full"
    except OSError as error:
        return f"this user (uid {os.geteuid()}) cannot write into {place}: {error.strerror}"


def _size(path: Path) -> int:
    found = 0
    for root, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                found += os.lstat(os.path.join(root, name)).st_blocks * 512  # noqa: PTH118
    return found


async def memory(model: Path | None, values: Mapping[str, Any], env: Mapping[str, str]) -> Memory:
    """The limit of memory, and the plan of a model with a worker's settings."""

    def number(name: str) -> int:
        return int(values.get(f"INFERFLUX_WORKER_{name}") or 0)

    limit, kv_bytes, host_bytes = limit_bytes(), number("KV_BYTES"), number("HOST_BYTES")
    found = Memory(limit, model, kv_bytes=kv_bytes, host_bytes=host_bytes)
    if model is None or limit is None:
        return found
    types = [str(values.get(f"INFERFLUX_WORKER_KV_TYPE_{which}") or "f16") for which in ("K", "V")]
    flags = {
        "--context": number("CONTEXT_LENGTH"),
        "--slots": number("SLOTS") or 16,
        "--kv-cells": number("KV_CELLS"),
        "--kv-type": ",".join(types),
        "--memory": limit,
    }
    try:
        plan = await ask(_PLAN, str(model), *(f"{flag}={value}" for flag, value in flags.items()), env=env)
    except ChildError as error:
        return Memory(limit, model, failure=str(error), kv_bytes=kv_bytes, host_bytes=host_bytes)
    return Memory(limit, model, plan, kv_bytes=kv_bytes, host_bytes=host_bytes)


def shared_memory(wanted_bytes: int, path: Path = _SHM) -> SharedMemory:
    """Room of the shared memory, and folders of workers in it that no process holds."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return SharedMemory(path, None, wanted_bytes=wanted_bytes)
    left = [one for one in path.glob(_FOLDERS) if _is_left(one)]
    sizes = {one: _size(one) for one in left}
    left = [one for one in left if sizes[one]]
    return SharedMemory(path, usage.total, usage.free, wanted_bytes, tuple(sorted(left)), sum(sizes.values()))


def _is_left(place: Path) -> bool:
    """True if no process holds a worker's folder."""
    try:
        lock = os.open(place / _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return error.errno == errno.ENOENT and place.is_dir()
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def files(streams: int, gateway_pid: int | None, proc: Path = Path("/proc")) -> Files:
    """Limits of the running gateway, or of a process that is started here."""
    for soft, hard in _limits(gateway_pid, proc):
        return Files(f"the gateway (pid {gateway_pid})", soft, hard, streams)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Files("a process started here", soft, hard, streams)


def _limits(pid: int | None, proc: Path) -> Iterator[tuple[int, int]]:
    with contextlib.suppress(OSError, ValueError):
        for line in (proc / str(pid) / "limits").read_text().splitlines() if pid else ():
            if line.startswith("Max open files"):
                soft, hard = line.split()[3:5]
                yield int(soft), int(hard)
