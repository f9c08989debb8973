"""The state of a sequence as llama.cpp writes it: with flash attention in one way, without it in another.

A context without it keeps the values transposed: for each dimension those of all cells, instead of for
each cell those of all dimensions. llama.cpp refuses to read the one where it expects the other, though both
hold the same numbers and take the same bytes.

The layout is that of `llama_kv_cache::state_write` in llama.cpp's src/llama-kv-cache.cpp, after the magic
number and the sequence id that `llama_state_seq_get_data` puts before it. All numbers are little-endian:

    u32 streams (1), u32 cells
    per cell: i32 position, u32 sequence ids (1), i32 sequence id
    u32 whether values are transposed, u32 layers
    per layer: i32 type, u64 bytes of a row, the keys' rows
    per layer: i32 type, u64 bytes of a row, the values' rows; or, transposed,
               i32 type, u32 bytes of an element, u32 dimensions, all cells' elements of each dimension
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

StateBytes = NDArray[np.uint8]

_PREFIX = struct.Struct("<4xiII")
_CELL_BYTES = 12
_SHAPE = struct.Struct("<II")
_KEY_ROWS = struct.Struct("<iQ")
_VALUES_BY_DIMENSION = struct.Struct("<iII")
_VALUES_BY_CELL = struct.Struct("<iQ")
_ELEMENTS: dict[int, type[np.unsignedinteger[Any]]] = {2: np.uint16, 4: np.uint32}
# By enum ggml_type: F32, F16, BF16.
_ELEMENT_BYTES = {0: 4, 1: 2, 30: 2}


class UnknownLayout(Exception):
    """A state that is written in another way: of another kind of memory, or by another llama.cpp."""


def by_cell(state: StateBytes) -> StateBytes:
    """`state`, of a context without flash attention, as one with it writes it.

    Raises:
        UnknownLayout: it is not laid out as above.
    """
    return _rewritten(state, is_transposed=True)


def by_dimension(state: StateBytes) -> StateBytes:
    """`state`, of a context with flash attention, as one without it writes it.

    Raises:
        UnknownLayout: it is not laid out as above.
    """
    return _rewritten(state, is_transposed=False)


def _rewritten(state: StateBytes, *, is_transposed: bool) -> StateBytes:
    """The other layout of a `state` whose values are transposed, or are not."""
    try:
        return _transposed(state, is_transposed=is_transposed)
    except struct.error as error:
        raise UnknownLayout(str(error)) from None


def _transposed(state: StateBytes, *, is_transposed: bool) -> StateBytes:
    given = state.data
    _, streams, cells = _PREFIX.unpack_from(given)
    at = _PREFIX.size + cells * _CELL_BYTES
    flag, layers = _SHAPE.unpack_from(given, at)
    if streams != 1 or flag != is_transposed:
        raise UnknownLayout(f"{streams} streams, values {'' if flag else 'not '}transposed")
    result = state.copy()
    changed = result.data
    _SHAPE.pack_into(changed, at, not is_transposed, layers)
    at += _SHAPE.size
    for _ in range(layers):
        _, row_bytes = _KEY_ROWS.unpack_from(given, at)
        at += _KEY_ROWS.size + cells * row_bytes
    for _ in range(layers):
        values = _Values.read(given, at, is_transposed=is_transposed)
        element = _ELEMENTS.get(values.element_bytes)
        n_bytes = cells * values.dimensions * values.element_bytes
        if element is None or at + _VALUES_BY_CELL.size + n_bytes > state.size:
            raise UnknownLayout(
                f"values of {values.dimensions} dimensions, {values.element_bytes} bytes each"
            )
        values.write(changed, at, is_transposed=not is_transposed)
        at += _VALUES_BY_CELL.size
        shape = (values.dimensions, cells) if is_transposed else (cells, values.dimensions)
        source = state[at : at + n_bytes].view(element).reshape(shape)
        result[at : at + n_bytes].view(element).reshape(shape[::-1])[:] = source.T
        at += n_bytes
    if at != state.size:
        raise UnknownLayout(f"{state.size - at} bytes more than its layers take")
    return result


@dataclass(frozen=True, slots=True)
class _Values:
    """What stands before a layer's values, of the same length in both layouts."""

    kind: int
    element_bytes: int
    dimensions: int

    @classmethod
    def read(cls, data: memoryview, at: int, *, is_transposed: bool) -> _Values:
        if is_transposed:
            return cls(*_VALUES_BY_DIMENSION.unpack_from(data, at))
        kind, row_bytes = _VALUES_BY_CELL.unpack_from(data, at)
        element_bytes = _ELEMENT_BYTES.get(kind, 0)
        if element_bytes == 0:
            raise UnknownLayout(f"values of the type {kind}")
        return cls(kind, element_bytes, row_bytes // element_bytes)

    def write(self, data: memoryview, at: int, *, is_transposed: bool) -> None:
        if is_transposed:
            _VALUES_BY_DIMENSION.pack_into(data, at, self.kind, self.element_bytes, self.dimensions)
        else:
            _VALUES_BY_CELL.pack_into(data, at, self.kind, self.dimensions * self.element_bytes)
