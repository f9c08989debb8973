"""What a worker reads of a GGUF file without loading it: its digest, and its tokenizer alone.

The layout is that of the GGUF specification, version 2 and 3: magic, version, tensor count, metadata
count, metadata, tensor index, then the weights.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"GGUF"
_HEADER = struct.Struct("<4sIQQ")
_VERSIONS = (2, 3)
_SCALAR_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING = 8
_ARRAY = 9
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class ModelFileError(Exception):
    """The file is not a GGUF this project can read."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model on disk.

    Attributes:
        digest: hex SHA-256 over metadata, tensor index and file size: tells models apart without
            reading their weights.
        tokenizer: a GGUF of the same metadata and no tensors, enough for a vocab-only load.
    """

    path: Path
    digest: str
    size_bytes: int
    architecture: str
    name: str
    tokenizer: bytes


def read_model_file(path: Path) -> ModelFile:
    """Read the head of a GGUF file.

    Raises:
        ModelFileError: missing, not a GGUF, cut off, or of an unknown version.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _parse(path, view)
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: {error}") from None
    except (struct.error, IndexError, KeyError):
        raise ModelFileError(f"{path}: the GGUF header is damaged or cut off") from None


def _parse(path: Path, view: mmap.mmap) -> ModelFile:
    magic, version, n_tensors, n_metadata = _HEADER.unpack_from(view)
    if magic != _MAGIC:
        raise ModelFileError(f"{path}: not a GGUF file")
    if version not in _VERSIONS:
        raise ModelFileError(f"{path}: GGUF version {version} is not supported, only {_VERSIONS}")
    at = metadata_start = _HEADER.size
    strings: dict[str, str] = {}
    for _ in range(n_metadata):
        key, at = _string(view, at)
        (kind,) = _U32.unpack_from(view, at)
        value_at = at + _U32.size
        at = _skip(view, value_at, kind)
        if kind == _STRING and key.startswith("general."):
            strings[key] = _string(view, value_at)[0]
    metadata_end = at
    for _ in range(n_tensors):
        at = _skip_tensor(view, at)
    if at > len(view):
        raise ModelFileError(f"{path}: the GGUF header is cut off")
    size = len(view)
    digest = hashlib.sha256(view[:at] + _U64.pack(size)).hexdigest()
    return ModelFile(
        path=path,
        digest=digest,
        size_bytes=size,
        architecture=strings.get("general.architecture", ""),
        name=strings.get("general.name", ""),
        tokenizer=_HEADER.pack(_MAGIC, version, 0, n_metadata) + view[metadata_start:metadata_end],
    )


def _length(view: mmap.mmap, at: int) -> int:
    return int(_U64.unpack_from(view, at)[0])


def _string(view: mmap.mmap, at: int) -> tuple[str, int]:
    length = _length(view, at)
    at += _U64.size
    if at + length > len(view):
        raise IndexError
    return view[at : at + length].decode("utf-8", "replace"), at + length


def _skip(view: mmap.mmap, at: int, kind: int) -> int:
    """Where the value of `kind` that starts at `at` ends."""
    if kind == _STRING:
        return at + _U64.size + _length(view, at)
    if kind != _ARRAY:
        return at + _SCALAR_SIZES[kind]
    element = int(_U32.unpack_from(view, at)[0])
    count = _length(view, at + _U32.size)
    at += _U32.size + _U64.size
    if element in _SCALAR_SIZES:
        return at + count * _SCALAR_SIZES[element]
    for _ in range(count):
        at = _skip(view, at, element)
    return at


def _skip_tensor(view: mmap.mmap, at: int) -> int:
    at += _U64.size + _length(view, at)
    n_dimensions = int(_U32.unpack_from(view, at)[0])
    return at + _U32.size + n_dimensions * _U64.size + _U32.size + _U64.size
