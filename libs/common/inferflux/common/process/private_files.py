"""Files that are replaced as a whole: written beside, then renamed.

What is there under the name beside is removed, never opened. So a link that someone plants in the folder has
nothing written to where it leads, and what a killed process left does not pile up.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o600, beside: Path | None = None) -> Iterator[BinaryIO]:
    """A file without a buffer that replaces `path` when the block ends, and is removed where it raises.

    Args:
        mode: of the file from its first byte on, whatever the umask.
        beside: where it is until then; no two may be written there at a time. None: a name of this process.

    Raises:
        OSError: it cannot be made, or put there.
    """
    scratch = beside or path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        scratch.unlink()
    descriptor = os.open(scratch, _FLAGS, mode)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            os.fchmod(descriptor, mode)
            yield file
        scratch.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise


def write_private(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace a file as a whole; it has `mode`, which is for its owner alone, from its first byte on."""
    with replacing(path, mode=mode) as file:
        write_all(file.fileno(), text.encode())


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of it, however often it takes.

    Raises:
        OSError: not all of it could be written.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def bytes_below(path: Path | str) -> int:
    """Bytes of all files of a folder, and of those in it.

    Raises:
        OSError: it cannot be read.
    """
    taken = 0
    for entry in os.scandir(path):
        with contextlib.suppress(FileNotFoundError):  # another one has just taken it
            is_folder = entry.is_dir(follow_symlinks=False)
            taken += bytes_below(entry.path) if is_folder else entry.stat(follow_symlinks=False).st_size
    return taken
