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


class UnknownLayout(Exception):
    """A state that is written in another way: of another kind of memory, or by another llama.cpp."""


def by_cell(state: StateBytes) -> StateBytes:
    """`state`, of a context without flash attention, as one with it writes it.

    Raises:
        UnknownLayout: it is not laid out as above.
    """
    try:
        return _by_cell(state)
    except struct.error as error:
        raise UnknownLayout(str(error)) from None


def _by_cell(state: StateBytes) -> StateBytes:
    given = state.data
    _, streams, cells = _PREFIX.unpack_from(given)
    at = _PREFIX.size + cells * _CELL_BYTES
    is_transposed, layers = _SHAPE.unpack_from(given, at)
    if streams != 1 or is_transposed != 1:
        raise UnknownLayout("not of one stream, or its values are not transposed")
    result = state.copy()
    changed = result.data
    _SHAPE.pack_into(changed, at, 0, layers)
    at += _SHAPE.size
    for _ in range(layers):
        _, row_bytes = _KEY_ROWS.unpack_from(given, at)
        at += _KEY_ROWS.size + cells * row_bytes
    for _ in range(layers):
        kind, element_bytes, dimensions = _VALUES_BY_DIMENSION.unpack_from(given, at)
        element = _ELEMENTS.get(element_bytes)
        n_bytes = cells * dimensions * element_bytes
        if element is None or at + _VALUES_BY_DIMENSION.size + n_bytes > state.size:
            raise UnknownLayout(f"values of {dimensions} dimensions, {element_bytes} bytes each")
        _VALUES_BY_CELL.pack_into(changed, at, kind, dimensions * element_bytes)
        at += _VALUES_BY_CELL.size
        source = state[at : at + n_bytes].view(element).reshape(dimensions, cells)
        target = result[at : at + n_bytes].view(element).reshape(cells, dimensions)
        target[:] = source.T
        at += n_bytes
    if at != state.size:
        raise UnknownLayout(f"{state.size - at} bytes more than its layers take")
    return result
