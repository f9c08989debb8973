"""A file system of some MB in memory, which tests fill up."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

_SIZE_MB = 16


class MountError(Exception):
    """No file system can be mounted here."""


class SmallDisk:
    """A file system of some MB in memory, which can be filled up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filling = path / "filling"

    @classmethod
    @contextlib.contextmanager
    def mounted(cls, size_mb: int = _SIZE_MB) -> Iterator[Self]:
        """Raises:
        MountError: this process may not mount.
        """
        with tempfile.TemporaryDirectory(prefix="inferflux-disk-") as folder:
            command = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "inferflux-small-disk", folder]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except FileNotFoundError:
                raise MountError("there is no `mount` here") from None
            if done.returncode:
                raise MountError(f"cannot mount: {done.stderr.strip()}")
            try:
                yield cls(Path(folder))
            finally:
                subprocess.run(["umount", "-l", folder], check=True)  # noqa: S607

    def fill(self) -> None:
        """Leave not a byte."""
        file = os.open(self._filling, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            with contextlib.suppress(OSError):
                while True:
                    os.write(file, b"\0" * 4096)
        finally:
            os.close(file)

    def empty(self) -> None:
        """Give the space back."""
        self._filling.unlink()
