"""Weights of safetensors files, one tensor in memory at a time.

The format: 8 bytes of length, a JSON header that names each tensor's type, shape and place, then the tensors
without gaps. https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .errors import ConversionError
from .fields import parse_json, read_fields

Weights = npt.NDArray[np.float32]

_LENGTH = struct.Struct("<Q")
_HEADER_BYTES: Final = 32 << 20
_INDEX_BYTES: Final = 32 << 20
_MOST_DIMENSIONS = 8
_MOST_SHARDS = 1000
_WIDTHS: Mapping[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a file: `begin` is in bytes from the file's start."""

    file: Path
    name: str
    kind: str
    shape: tuple[int, ...]
    begin: int

    def load(self) -> Weights:
        """Load the tensor's numbers.

        Raises:
            ConversionError: it holds none of the three kinds of floats, or numbers that are not finite.
        """
        if self.kind not in ("F32", "F16", "BF16"):
            raise self._error(f"{self.kind} is not read: weights have to be F32, F16 or BF16")
        count = math.prod(self.shape)
        stored = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[self.kind]
        try:
            raw = np.fromfile(self.file, np.dtype(stored), count, offset=self.begin)
        except OSError as error:
            raise self._error(error.strerror or str(error)) from None
        if raw.size != count:
            raise self._error("the file has become shorter")
        values = (
            (raw.astype(np.uint32) << 16).view(np.float32)
            if self.kind == "BF16"
            else raw.astype(np.float32, copy=False)
        )
        if not np.isfinite(values).all():
            raise self._error("it has numbers that are not finite")
        return values.reshape(self.shape)

    def _error(self, why: str) -> ConversionError:
        return ConversionError(f"{self.file.name}: {self.name}: {why}")


def read_file(path: Path) -> dict[str, Stored]:
    """The tensors of one file by name.

    Raises:
        ConversionError: the header is not as the format wants it, or does not fit the file; names the tensor.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(_LENGTH.size)
            if len(prefix) < _LENGTH.size:
                raise ConversionError(f"{path.name}: it is too short to be a safetensors file")
            (length,) = _LENGTH.unpack(prefix)
            if length > min(_HEADER_BYTES, size - _LENGTH.size):
                raise ConversionError(
                    f"{path.name}: a header of {length:,} bytes, in a file of {size:,}: "
                    f"at most {_HEADER_BYTES:,} are read"
                )
            header = file.read(length)
    except OSError as error:
        raise ConversionError(f"{path.name}: {error.strerror or error}") from None
    entries = parse_json(header, f"{path.name}: header")
    if not isinstance(entries, dict):
        raise ConversionError(f"{path.name}: header: it holds no object")
    start = _LENGTH.size + length
    found: dict[str, Stored] = {}
    places: list[tuple[int, int, str]] = []
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        kind, shape, begin, end = _checked(entry, f"{path.name}: {_shown(name)}", size - start)
        found[name] = Stored(path, name, kind, shape, start + begin)
        places.append((begin, end, name))
    _check_places(sorted(places), size - start, path.name)
    return found


def _checked(entry: Any, said: str, data_bytes: int) -> tuple[str, tuple[int, ...], int, int]:
    if not isinstance(entry, dict):
        raise ConversionError(f"{said}: it is no object")
    kind = entry.get("dtype")
    if not isinstance(kind, str) or kind not in _WIDTHS:
        raise ConversionError(f"{said}: dtype: {str(kind)[:20]!r} is not known")
    shape, place = _counts(entry.get("shape")), _counts(entry.get("data_offsets"))
    if shape is None or len(shape) > _MOST_DIMENSIONS:
        raise ConversionError(f"{said}: shape: it is not a list of at most {_MOST_DIMENSIONS} whole numbers")
    if place is None or len(place) != 2 or not place[0] <= place[1] <= data_bytes:
        raise ConversionError(f"{said}: data_offsets: they are no place in {data_bytes:,} bytes")
    begin, end = place
    takes = math.prod(shape) * _WIDTHS[kind]
    if end - begin != takes:
        raise ConversionError(
            f"{said}: data_offsets: {end - begin:,} bytes, and {kind} of its shape takes {takes:,}"
        )
    return kind, shape, begin, end


def _check_places(places: list[tuple[int, int, str]], data_bytes: int, file: str) -> None:
    """Tensors lie one behind the other, without gaps, and fill the file."""
    at = 0
    for begin, end, name in places:
        if begin != at:
            raise ConversionError(
                f"{file}: {_shown(name)}: data_offsets: it begins at {begin:,}, "
                f"and the one before ends at {at:,}"
            )
        at = end
    if at != data_bytes:
        raise ConversionError(f"{file}: tensors end at {at:,} of {data_bytes:,} bytes: is it cut off?")


def _counts(value: Any) -> tuple[int, ...] | None:
    """A list of whole numbers; None if it is something else."""
    if not isinstance(value, list):
        return None
    are_counts = all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**62 for n in value)
    return tuple(value) if are_counts else None


def _shown(name: str) -> str:
    return name if name.isprintable() and len(name) <= 200 else repr(name[:200])


def read_folder(folder: Path) -> dict[str, Stored]:
    """The tensors of a model in one file or in several with an index.

    Raises:
        ConversionError: there are none, a file or a tensor of the index is missing, or a header is wrong.
    """
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if not index.is_file():
        if single.is_file():
            return read_file(single)
        raise ConversionError(f"{folder}: it has neither model.safetensors nor {index.name}")
    placed = read_fields(index, _INDEX_BYTES).inner("weight_map")
    if placed is None:
        raise ConversionError(f"{index.name}: weight_map: it is missing")
    names = sorted({_shard(placed.text(tensor), index.name) for tensor in placed.values})
    if len(names) > _MOST_SHARDS:
        raise ConversionError(
            f"{index.name}: weight_map: {len(names)} files, and at most {_MOST_SHARDS} are read"
        )
    found: dict[str, Stored] = {}
    for name in names:
        for tensor, stored in read_file(folder / name).items():
            if placed.values.get(tensor) != name:
                raise ConversionError(
                    f"{name}: {_shown(tensor)}: {index.name} has it elsewhere, or not at all"
                )
            found[tensor] = stored
    if missing := [tensor for tensor in placed.values if tensor not in found]:
        raise ConversionError(f"{placed.values[missing[0]]}: {_shown(missing[0])} is missing")
    return found


def _shard(name: str, index: str) -> str:
    if not name.endswith(".safetensors") or Path(name).name != name or not name.isprintable():
        raise ConversionError(f"{index}: weight_map: {name[:100]!r} is not the name of a file beside it")
    return name
