"""Digest that tells adapters apart, by an adapter's file and how strongly it is applied."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

_SCALE = struct.Struct("<d")


def digest_of(path: Path, scale: float) -> str:
    """Hex SHA-256 over the whole file and its scale.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update(_SCALE.pack(scale))
    return digest.hexdigest()
