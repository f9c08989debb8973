"""Folders of temporary files that do not outlive their process for long, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Held for as long as the process lives.
_LOCK = ".lock"


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """A new folder among temporary files. Those that killed processes have left under this prefix go.

    Raises:
        OSError: it cannot be made.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_LOCK}"):
        _remove_if_left(left)
    with tempfile.TemporaryDirectory(prefix=prefix) as name:
        folder = Path(name)
        new = folder / f"{_LOCK}.new"
        with new.open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            new.rename(folder / _LOCK)  # from here on others look at it, and find it held
            yield folder


def _remove_if_left(lock_file: Path) -> None:
    """Remove the folder of a lock that is free, unless it is another user's or has just been removed."""
    with contextlib.suppress(OSError):
        lock = os.open(lock_file, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock_file.parent, ignore_errors=True)
        finally:
            os.close(lock)
