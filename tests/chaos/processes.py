"""What runs on this machine on behalf of a chaos run, told by a mark that children inherit (Linux)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

MARK = "CHAOS_RUN"


def marked(mark: str) -> dict[int, str]:
    """Process ids and commands of all that carry the mark, except this process."""
    wanted = f"{MARK}={mark}".encode()
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = _command(folder)
    return found


def descendants(pid: int) -> set[int]:
    """The children of a process, and theirs."""
    found = set(children(pid))
    return found.union(*(descendants(child) for child in found))


def children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def left_behind(mark: str, managed: Iterable[int]) -> dict[int, str]:
    """What carries the mark and belongs to none of the managed processes."""
    known = set(managed)
    known.update(*(descendants(pid) for pid in list(known)))
    return {pid: command for pid, command in marked(mark).items() if pid not in known}


def child_of(pid: int, module: str) -> int | None:
    """The child of a process that runs a Python module; None while there is none."""
    for child in children(pid):
        with contextlib.suppress(OSError):
            if module in _command(Path(f"/proc/{child}")).split():
                return child
    return None


def _command(folder: Path) -> str:
    return (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
