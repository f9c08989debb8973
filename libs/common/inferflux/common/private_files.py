"""Files for their owner alone."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace a file as a whole; it has `mode`, which is for its owner alone, from its first byte on."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, mode)  # whatever the umask
        file.write(text)
    scratch.replace(path)
