"""What a power cut leaves of a process's files: what it had synced, and nothing after."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

_CALLS = "write,pwrite64,writev,pwritev,ftruncate,fsync,fdatasync,openat,rename,renameat,renameat2,exit_group"
_LINE = re.compile(r"^(\d+) +(.*)$")
_RESUMED = re.compile(r"^<\.\.\. \w+ resumed>(.*)$")
_CALL = re.compile(r"^(\w+)\((?:\d+|AT_FDCWD<[^>]*>)(?:<(?P<path>[^>]*)>)?(?P<rest>.*)\) = (?P<result>-?\d+)")
_NAMES = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ATTACHED_S = 10.0


class PowerCut:
    """Watches processes by `strace` from when it begins; then kills them and drops what they had not synced.

    All that was written before it began is on the disk: it syncs everything. A file that was only appended to
    is cut off where it ended when it was synced last. One that was written over, or put in place of another,
    and not synced since is cut off where that began.

    Args:
        pids: of the processes.
        directory: only files in it are dropped from, and notes are made beside it.
    """

    def __init__(self, pids: Sequence[int], directory: Path) -> None:
        self._pids = pids
        self._directory = directory
        self._trace = directory.parent / f"{directory.name}.strace"
        self._strace: subprocess.Popen[bytes] | None = None

    @staticmethod
    def why_not() -> str:
        """Why this machine cannot do it; "" if it can."""
        strace = shutil.which("strace")
        if strace is None:
            return "no strace"
        probe = subprocess.run([strace, "-o", os.devnull, "true"], capture_output=True, check=False)
        return "" if probe.returncode == 0 else "strace may not trace"

    def __enter__(self) -> Self:
        os.sync()
        self._synced = {}
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):  # the processes are at work
                self._synced[path] = path.stat().st_size
        command = ["strace", "-f", "-y", "-s", "0", "-e", f"trace={_CALLS}", "-o", str(self._trace)]
        for pid in self._pids:
            command += ["-p", str(pid)]
        self._strace = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        deadline_s = time.monotonic() + _ATTACHED_S
        while not all(map(_is_traced, self._pids)):
            if time.monotonic() > deadline_s:
                raise TimeoutError("strace has not attached")
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        if self._strace is not None and self._strace.poll() is None:
            self._strace.terminate()
            self._strace.wait(10)

    def happen(self) -> dict[str, int]:
        """Kill the processes and drop. Returns how many bytes of which files were dropped."""
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
        if self._strace is not None:
            self._strace.wait(10)
        dropped = {}
        kept = self._kept()
        for path in self._files():
            size = path.stat().st_size
            if kept.get(path, 0) < size:
                os.truncate(path, kept.get(path, 0))
                dropped[str(path.relative_to(self._directory))] = size - kept.get(path, 0)
        return dropped

    def _files(self) -> list[Path]:
        return [path for path in self._directory.rglob("*") if path.is_file() and path.suffix != ".log"]

    def _kept(self) -> dict[Path, int]:
        """How much of each file is on the disk."""
        kept = dict(self._synced)
        size = dict(self._synced)
        for name, path, rest, result in _calls(self._trace):
            if result < 0:
                continue
            match name:
                case "pwrite64" | "pwritev":
                    offset = int(rest.rsplit(",", 1)[1])
                    size[path] = max(size.get(path, 0), offset + result)
                    kept[path] = min(kept.get(path, 0), offset)  # what is written over is not what was synced
                case "write" | "writev":
                    size[path] = size.get(path, 0) + result
                case "ftruncate":
                    size[path] = int(rest.rsplit(",", 1)[1])
                    kept[path] = min(kept.get(path, 0), size[path])
                case "fsync" | "fdatasync":
                    kept[path] = size.get(path, 0)
                case "openat" if "O_TRUNC" in rest:
                    kept[path] = size[path] = 0
                case "rename" | "renameat" | "renameat2":
                    old, new = (Path(found) for found in _NAMES.findall(rest)[:2])
                    kept[new], size[new] = kept.pop(old, 0), size.pop(old, 0)
        return kept


def _is_traced(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return "TracerPid:\t0\n" not in status


def _calls(trace: Path) -> Iterator[tuple[str, Path, str, int]]:
    """Name, file, arguments and result of each call."""
    begun: dict[str, str] = {}
    for line in trace.read_text(errors="replace").splitlines():
        if (found := _LINE.match(line)) is None:
            continue
        thread, text = found.groups()
        if text.endswith("<unfinished ...>"):
            begun[thread] = text.removesuffix("<unfinished ...>").rstrip()
            continue
        if (rest := _RESUMED.match(text)) is not None:
            text = begun.pop(thread, "") + rest.group(1)
        if (call := _CALL.match(text)) is None:
            continue
        name, path = call.group(1), call.group("path") or ""
        if name == "openat":
            path = next(iter(_NAMES.findall(call.group("rest"))), "")
        yield name, Path(path), call.group("rest"), int(call.group("result"))
