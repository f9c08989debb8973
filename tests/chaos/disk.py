"""What can happen to the folder of a worker's disk tier (Linux)."""

from __future__ import annotations

import os
import random
import resource
import signal
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Files that no worker wrote begin with this.
_FOREIGN = "foreign"
_OTHER_VERSION = struct.pack("<8sI", b"\x89IFXKV\r\n", 0).ljust(4096, b"\0")
_POLL_S = 0.0005
# A full disk still has room for so much.
_ROOM_BYTES = 4096


def folder_of(engine: int) -> Path | None:
    """The folder that this engine process has claimed; None while it has none."""
    with suppress(OSError):
        for fd in Path(f"/proc/{engine}/fd").iterdir():
            with suppress(OSError):
                opened = fd.readlink()
                if opened.name == "lock" and opened.parent.parent.name == "kv":
                    return opened.parent
    return None


def kill_while_writing(engine: int, limit_s: float) -> bool:
    """Kill an engine while it writes a file; False if it wrote none within `limit_s`, and lives."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        folder = folder_of(engine)
        if folder is not None and _is_written_to(folder):
            with suppress(ProcessLookupError):
                os.kill(engine, signal.SIGSTOP)
                is_written_to = _is_written_to(folder)
                os.kill(engine, signal.SIGKILL if is_written_to else signal.SIGCONT)
                if is_written_to:
                    return True
        time.sleep(_POLL_S)
    return False


def _is_written_to(folder: Path) -> bool:
    with suppress(OSError):
        return any(_is_unfinished(name) for name in os.listdir(folder))  # noqa: PTH208 - it is asked often
    return False


def _is_unfinished(name: str) -> bool:
    return name.endswith(".tmp") and not name.startswith(_FOREIGN)


def spoil(folder: Path, rng: random.Random) -> int:
    """Cut some files off, change bytes of others, and add some that are no worker's; returns how many."""
    names = sorted(path.name for path in folder.glob("*.kv") if not path.name.startswith(_FOREIGN))
    chosen = rng.sample(names, min(len(names), 4))
    for i, name in enumerate(chosen):
        with suppress(OSError):
            damage(folder / name, rng, is_cut=bool(i % 2))
    number = rng.randrange(1 << 32)
    (folder / f"{_FOREIGN}-{number}.kv").write_bytes(rng.randbytes(rng.choice((0, 7, 5000))))
    (folder / f"{_FOREIGN}-{number}-other.kv").write_bytes(_OTHER_VERSION)
    (folder / f"{_FOREIGN}-{number}.tmp").write_bytes(rng.randbytes(100))
    (folder / f"{_FOREIGN}-{number}-folder.kv").mkdir()
    return len(chosen) + 4


def damage(path: Path, rng: random.Random, *, is_cut: bool) -> None:
    """Cut a file off somewhere, or change a byte."""
    size = path.stat().st_size
    if not size:  # damaged before
        return
    at = rng.randrange(size)
    if is_cut:
        os.truncate(path, at)
        return
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes([old[0] ^ 0xFF]))


@contextmanager
def full(engine: int) -> Iterator[None]:
    """The kernel refuses all but short writes to this process, as it does on a full disk."""
    with suppress(ProcessLookupError):
        soft, hard = resource.prlimit(engine, resource.RLIMIT_FSIZE)
        resource.prlimit(engine, resource.RLIMIT_FSIZE, (_ROOM_BYTES, hard))
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                resource.prlimit(engine, resource.RLIMIT_FSIZE, (soft, hard))
        return
    yield


def wrongs(folders: Iterable[Path], limit_bytes: int) -> list[str]:
    """What should not be in folders that nothing is written to at present."""
    found = []
    for folder in folders:
        files = [path for path in folder.iterdir() if not path.name.startswith(_FOREIGN)]
        found += [f"{path} was never finished" for path in files if _is_unfinished(path.name)]
        taken = sum(path.stat().st_size for path in files)
        if taken > limit_bytes:
            found.append(f"{folder} has {taken} bytes, and may have {limit_bytes}")
    return found
