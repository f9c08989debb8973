"""Numbered folders, each of one process for as long as it lives, and what dead ones have left in theirs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

SUFFIX = ".kv"
UNFINISHED = ".tmp"
LOCK = "lock"
# Workers that share a folder have a numbered one in it each.
MOST_WORKERS = 64
EXCHANGE = "exchange"
# What was not taken from the exchange by then is removed.
_EXCHANGE_S = 600.0


class FolderInUse(Exception):
    """Other processes have every part of the folder."""


def make_private(path: Path) -> None:
    """Make a folder in a place where anybody can make one, if it is missing.

    Raises:
        OSError: it cannot be made, or it is there and not for this user alone.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_own or found.st_mode & 0o077:
        raise PermissionError(errno.EACCES, "it is not a folder for this user alone", str(path))


def sweep(own: Path) -> None:
    """Remove what was not taken for 10 minutes, in exchanges and in folders of dead processes, beside `own`
    and in other roots. What a process has left counts from its last sign of life as well."""
    since_ns = _left_over_ns()
    for root in own.parent.parent.iterdir():
        for path in root.iterdir() if root.is_dir() else ():
            lock = path / LOCK
            if path == own or not lock.is_file():
                continue
            if path.name == EXCHANGE or lock.stat().st_mtime_ns < since_ns:
                clear(path, since_ns)
        if root != own.parent:
            remove_unused(root)


def clear_left_over(exchange: Path) -> None:
    """Remove what was not taken from an exchange for 10 minutes."""
    clear(exchange, _left_over_ns())


def _left_over_ns() -> int:
    return time.time_ns() - int(_EXCHANGE_S * 1e9)


@contextlib.contextmanager
def locked(path: Path, kind: int) -> Iterator[None]:
    """Have a folder that is no process's for a moment.

    Args:
        kind: `LOCK_SH` where others may look through it at the same time, else `LOCK_EX`.

    Raises:
        OSError: a process has it, or it is none of ours.
    """
    lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def claimed(root: Path, *, is_empty: bool) -> tuple[Path, int]:
    """(the folder that is this process's now, the lock that says so).

    Args:
        is_empty: take one in which nothing is, if there is one.
    """
    numbers = [*range(MOST_WORKERS)]
    if is_empty:
        numbers.sort(key=lambda number: _has_files(root / str(number)))
    for number in numbers:
        path = root / str(number)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # the process that had it has just removed it
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock), (path / LOCK).stat()):
                    os.utime(lock)
                    return path, lock
            except BlockingIOError:
                pass
            os.close(lock)
    raise FolderInUse(f"{MOST_WORKERS} processes use {root}")


def _has_files(path: Path) -> bool:
    """True if more than a lock is in a folder."""
    try:
        return any(entry.name != LOCK for entry in path.iterdir())
    except OSError:
        return False


def clear(path: Path, unused_since_ns: int) -> None:
    """Remove the files of a folder that no living process has, if they were last used before that time."""
    with contextlib.suppress(OSError), locked(path, fcntl.LOCK_EX):
        for entry in path.iterdir():
            if entry.name.endswith((SUFFIX, UNFINISHED)):
                with contextlib.suppress(OSError):
                    if entry.lstat().st_mtime_ns < unused_since_ns:
                        entry.unlink()


def remove_unused(root: Path) -> None:
    """Remove empty folders of processes that live no more; with the last of them their empty exchange. What
    was on its way to one of them goes with it."""
    for path in sorted(root.iterdir()):  # the exchange is the last
        is_last = path.name != EXCHANGE or [*root.iterdir()] == [path]
        with contextlib.suppress(OSError), locked(path, fcntl.LOCK_EX):
            for each in path.iterdir() if is_last else ():
                if each.is_dir():
                    _clear_out(each, path)
            if is_last and [*path.iterdir()] == [path / LOCK]:
                (path / LOCK).unlink()
                path.rmdir()
    with contextlib.suppress(OSError):
        root.rmdir()


def _clear_out(folder: Path, parent: Path) -> None:
    """Remove a folder: one of an exchange with all that is in it, pieces and sockets."""
    for entry in folder.iterdir() if parent.name == EXCHANGE else ():
        entry.unlink()
    folder.rmdir()
