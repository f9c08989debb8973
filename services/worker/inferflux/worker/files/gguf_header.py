"""Reads the head of a GGUF file: metadata and tensor index, not the weights (pure).

The layout is that of the GGUF specification, version 2 and 3: magic, version, tensor count, metadata
count, metadata, tensor index, then the weights. The file is not trusted: nothing here recurses, allocates
by a count the file states, or reads beyond its end.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from inferflux.common.process.child.captured import one_line

from .weight_parts import PartCounts

MAGIC = b"GGUF"
SPLIT = "split."
"""How metadata begin that tell of several files of a model, and which one this is."""
HEADER = struct.Struct("<4sIQQ")
MAX_HEADER_BYTES = 256 << 20
"""The largest vocabularies of today take 20 MB."""
_MAX_STRINGS = 4 << 20
_MAX_TENSORS = 1 << 20
_MAX_METADATA = 1 << 16
_MAX_DIMENSIONS = 4
_MAX_WEIGHTS = 1 << 60
_LONGEST_KEY = 1 << 16
_VERSIONS = (2, 3)
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

Buffer = mmap.mmap | bytes


class HeaderError(Exception):
    """The head of the file cannot be used; says which field and why."""


class Kind(IntEnum):
    """Types of metadata values, as numbered in the file."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


_SCALARS = {
    Kind.U8: struct.Struct("<B"),
    Kind.I8: struct.Struct("<b"),
    Kind.U16: struct.Struct("<H"),
    Kind.I16: struct.Struct("<h"),
    Kind.U32: _U32,
    Kind.I32: struct.Struct("<i"),
    Kind.F32: struct.Struct("<f"),
    Kind.BOOL: struct.Struct("<?"),
    Kind.U64: _U64,
    Kind.I64: struct.Struct("<q"),
    Kind.F64: struct.Struct("<d"),
}


INTEGER_KINDS = frozenset(_SCALARS) - {Kind.F32, Kind.F64, Kind.BOOL}


@dataclass(frozen=True, slots=True)
class Array:
    """An array of metadata: where its elements lie in the file."""

    kind: Kind
    count: int
    start: int


Value = int | float | bool | str | Array


@dataclass(frozen=True, slots=True)
class Tensor:
    """Attributes:
    shape: numbers along each dimension, the one that lies closest together first.
    kind: as in enum ggml_type.
    offset: of its weights, from where all weights begin.
    """

    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """Attributes:
    metadata: values by key.
    n_tensors: in the index.
    metadata_end: offset of the tensor index.
    end: offset of what follows the index.
    weights: how many numbers the tensors hold in all, by ggml_type.
    parts: what they take, by the part of the model.
    split: where the metadata that only one file of several has begin and end in the file, key by key.
    tensors: by name; empty unless they were to be kept.
    """

    version: int
    metadata: dict[str, Value]
    n_tensors: int
    metadata_end: int
    end: int
    weights: Mapping[int, int]
    parts: PartCounts
    split: tuple[tuple[int, int], ...] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


def parse_header(view: Buffer, *, keep_tensors: bool = False, before: Header | None = None) -> Header:
    """Read the head of the file that `view` begins with.

    Args:
        keep_tensors: whether the header lists each tensor.
        before: of the files of the same model before this one: their tensors are counted as well.

    Raises:
        HeaderError: not a GGUF, cut off, of an unknown version, or beyond the bounds of this module.
    """
    if view[: len(MAGIC)] != MAGIC:
        raise HeaderError("not a GGUF file")
    if len(view) < HEADER.size:
        raise HeaderError("the GGUF header is cut off")
    _magic, version, n_tensors, n_metadata = HEADER.unpack_from(view)
    if version not in _VERSIONS:
        raise HeaderError(f"GGUF version {version} is not supported, only 2 and 3")
    if n_tensors > _MAX_TENSORS:
        raise HeaderError(f"the tensor count is {n_tensors}: it must be at most {_MAX_TENSORS}")
    if n_metadata > _MAX_METADATA:
        raise HeaderError(f"the metadata count is {n_metadata}: it must be at most {_MAX_METADATA}")
    reader = _Reader(view, PartCounts() if before is None else before.parts)
    metadata = reader.metadata(n_metadata)
    metadata_end = reader.at
    tensors: dict[str, Tensor] = {}
    weights = reader.tensors(n_tensors, tensors if keep_tensors else None)
    if before is not None:
        n_tensors, weights = n_tensors + before.n_tensors, weights + Counter(before.weights)
    split = tuple(reader.split)
    return Header(
        version, metadata, n_tensors, metadata_end, reader.at, weights, reader.parts, split, tensors
    )


def strings_of(view: Buffer, array: Array) -> Iterator[bytes]:
    """The elements of an array of strings that `parse_header` found in `view`."""
    at = array.start
    for _ in range(array.count):
        (length,) = _U64.unpack_from(view, at)
        at += _U64.size
        yield view[at : at + length]
        at += length


def integers_of(view: Buffer, array: Array) -> Iterator[int]:
    """The elements of an array of integers that `parse_header` found in `view`; of any other kind, none."""
    if array.kind not in INTEGER_KINDS:
        return
    scalar = _SCALARS[array.kind]
    for i in range(array.count):
        yield int(scalar.unpack_from(view, array.start + i * scalar.size)[0])


class _Reader:
    """Reads on from `at`; `field` is what an error names."""

    def __init__(self, view: Buffer, parts: PartCounts) -> None:
        self.at = HEADER.size
        self._view = view
        self._field = ""
        self._strings_left = _MAX_STRINGS
        self.parts = parts
        self.split: list[tuple[int, int]] = []

    def metadata(self, count: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for number in range(count):
            self._field, start = f"metadata {number} of {count}", self.at
            key = self._string(_LONGEST_KEY)
            self._field = one_line(key)
            if key in found:
                raise HeaderError(f"{self._field} is in the file twice")
            found[key] = self._value(self._kind())
            if key.startswith(SPLIT):
                self.split.append((start, self.at))
        return found

    def tensors(self, count: int, listed: dict[str, Tensor] | None = None) -> Counter[int]:
        """Numbers in all tensors, by their type; each tensor goes into `listed` as well."""
        weights: Counter[int] = Counter()
        for number in range(count):
            self._field = f"tensor {number} of {count}"
            name = self._string(_LONGEST_KEY)
            self._field = f"tensor {one_line(name)}"
            n_dimensions = self._number(_U32)
            if not 1 <= n_dimensions <= _MAX_DIMENSIONS:
                raise HeaderError(f"{self._field} has {n_dimensions} dimensions: it must have 1 to 4")
            sizes = [self._number(_U64) for _ in range(n_dimensions)]
            if not 0 < math.prod(sizes) < 1 << 63:
                raise HeaderError(f"{self._field} is {' x '.join(map(str, sizes))}: no such shape can be")
            kind = self._number(_U32)
            weights[kind] += math.prod(sizes)
            self.parts.add(name, math.prod(sizes), kind)
            offset = self._number(_U64)
            if listed is not None:
                if name in listed:
                    raise HeaderError(f"{self._field} is in the file twice")
                listed[name] = Tensor(tuple(sizes), kind, offset)
        if weights.total() >= _MAX_WEIGHTS:
            raise HeaderError(f"the tensors hold {weights.total()} numbers: no such model can be")
        return weights

    def _value(self, kind: Kind) -> Value:
        if kind == Kind.STRING:
            return self._string(MAX_HEADER_BYTES)
        if kind == Kind.ARRAY:
            return self._array()
        scalar = _SCALARS[kind]
        value: int | float | bool = scalar.unpack_from(self._view, self._take(scalar.size))[0]
        return value

    def _array(self) -> Array:
        kind = self._kind()
        count = self._number(_U64)
        start = self.at
        if kind == Kind.ARRAY:
            raise HeaderError(f"{self._field} is an array of arrays, which llama.cpp does not know")
        if kind == Kind.STRING:
            self._skip_strings(count)
        else:
            self._take(
                count * _SCALARS[kind].size, f"{self._field} has {count} elements: the file is shorter"
            )
        return Array(kind, count, start)

    def _skip_strings(self, count: int) -> None:
        self._strings_left -= count
        if self._strings_left < 0:
            raise HeaderError(f"{self._field} has {count} elements: a header may have {_MAX_STRINGS}")
        view, at, end = self._view, self.at, len(self._view) - _U64.size
        for _ in range(count):
            if at > end:
                raise self._cut_off()
            at += _U64.size + _U64.unpack_from(view, at)[0]
        self._take(at - self.at)

    def _kind(self) -> Kind:
        number = self._number(_U32)
        try:
            return Kind(number)
        except ValueError:
            raise HeaderError(f"{self._field} is of the unknown type {number}") from None

    def _string(self, longest: int) -> str:
        length = self._number(_U64)
        if length > longest:
            raise HeaderError(f"{self._field} has a string of {length} bytes: at most {longest} can be")
        start = self._take(length)
        return bytes(self._view[start : start + length]).decode("utf-8", "replace")

    def _number(self, scalar: struct.Struct) -> int:
        number: int = scalar.unpack_from(self._view, self._take(scalar.size))[0]
        return number

    def _take(self, n_bytes: int, why_not: str = "") -> int:
        """Step over `n_bytes`; where they begin."""
        start, self.at = self.at, self.at + n_bytes
        if self.at > len(self._view):
            raise HeaderError(why_not) if why_not else self._cut_off()
        return start

    def _cut_off(self) -> HeaderError:
        if len(self._view) >= MAX_HEADER_BYTES:
            return HeaderError(
                f"the GGUF header is longer than {MAX_HEADER_BYTES >> 20} MiB, at {self._field}"
            )
        return HeaderError(f"the GGUF header is cut off at {self._field}")
