"""Files without a name, in memory where the system has such files (Linux), else in the temporary folder."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def open_memory_file() -> int:
    """The descriptor of an empty file that is gone when it is closed."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("memory_file")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


@contextlib.contextmanager
def path_of(data: bytes) -> Iterator[Path]:
    """A path under which this process can read `data` meanwhile."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile() as named:
            named.write(data)
            named.flush()
            yield Path(named.name)
        return
    fd = open_memory_file()
    try:
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(data)
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
