"""Files of pieces of KV state: what their maker, its worker and those who take them agree on.

Memory that was touched before is written ten times as fast. So a reader of an engine's piece does not remove
its file, but gives it another name, and the engine uses it again.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

try:
    # The same values, ten times as fast. Both release the GIL.
    from isal.isal_zlib import crc32
except ImportError:  # there is none for this machine
    from zlib import crc32

__all__ = ["PIECES", "READ", "REUSED", "UNFINISHED", "crc32", "release"]

PIECES = "pieces"
# The beginning of names of files that their makers use again.
REUSED = "re-"
# The ends of names: of a file that is written, and of one that was read.
UNFINISHED, READ = ".tmp", ".read"


def release(path: Path) -> None:
    """A piece was read, and nothing uses its file: its maker may."""
    with contextlib.suppress(OSError):
        if path.name.startswith(REUSED):
            path.rename(path.with_name(path.name + READ))
        else:
            path.unlink()
