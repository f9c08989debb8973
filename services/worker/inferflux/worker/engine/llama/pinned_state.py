"""The state of a sequence as llama.cpp writes it: with flash attention in one way, without it in another.

A context without it keeps the values transposed: for each dimension those of all cells, instead of for
each cell those of all dimensions. llama.cpp refuses to read the one where it expects the other, though both
hold the same numbers and take the same bytes.

The layout is that of `llama_kv_cache::state_write` in llama.cpp's src/llama-kv-cache.cpp, after the magic
number and the sequence id that `llama_state_seq_get_data` puts before it. It is no part of llama.cpp's API:
the module is pinned to the llama.cpp of llama-cpp-python 0.3.36, and another layout is refused when it is
read. All numbers are little-endian:

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
_N_CELLS = struct.Struct("<I")
CELL_HEADER_BYTES = 12
"""What a state has of a cell beside its keys and values."""
_SHAPE = struct.Struct("<II")
_KEY_ROWS = struct.Struct("<iQ")
_VALUES_BY_DIMENSION = struct.Struct("<iII")
_VALUES_BY_CELL = struct.Struct("<iQ")
# What stands before the numbers of a layer, in every layout.
_BLOCK_BYTES = 12
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
    return _transposed(state, is_transposed=True)


def by_dimension(state: StateBytes) -> StateBytes:
    """`state`, of a context with flash attention, as one without it writes it.

    Raises:
        UnknownLayout: it is not laid out as above.
    """
    return _transposed(state, is_transposed=False)


def first_positions(state: StateBytes, n: int) -> StateBytes:
    """`state` of the positions below `n` alone.

    Raises:
        UnknownLayout: it is not laid out as above, or does not have each of these positions once.
    """
    layout = _layout_of(state)
    # A cell is as long as three numbers: position, count of sequence ids, sequence id.
    cells = state[_PREFIX.size : layout.shape_at].view("<i4").reshape(layout.cells, 3)
    chosen = np.flatnonzero(cells[:, 0] < n)
    if not np.array_equal(np.sort(cells[chosen, 0]), np.arange(n)):
        raise UnknownLayout(f"{chosen.size} cells for the first {n} positions")
    wanted = _as_slice(chosen)
    result = np.empty(state.size - layout.bytes_of(layout.cells - n), np.uint8)
    result[: _PREFIX.size] = state[: _PREFIX.size]
    _N_CELLS.pack_into(result.data, _PREFIX.size - _N_CELLS.size, n)
    at = _PREFIX.size + n * CELL_HEADER_BYTES
    result[_PREFIX.size : at].view("<i4").reshape(n, 3)[:] = cells[wanted]
    result[at : at + _SHAPE.size] = state[layout.shape_at :][: _SHAPE.size]
    at += _SHAPE.size
    for block in layout.keys + layout.values:
        result[at : at + _BLOCK_BYTES] = state[block.at - _BLOCK_BYTES : block.at]
        at += _BLOCK_BYTES
        end = at + block.n_bytes // layout.cells * n
        if block.is_transposed:
            result[at:end].view(block.element).reshape(-1, n)[:] = block.numbers(state)[:, wanted]
        else:
            result[at:end].reshape(n, -1)[:] = block.numbers(state)[wanted]
        at = end
    return result


def has_positions(state: StateBytes, first: int, end: int) -> bool:
    """True if `state` is laid out as above up to its cells, and they have each of the positions [first, end)
    once, and no other."""
    n = end - first
    at = _PREFIX.size + n * CELL_HEADER_BYTES
    if state.size < at or _PREFIX.unpack_from(state.data)[1:] != (1, n):
        return False
    cells = state[_PREFIX.size : at].view("<i4").reshape(n, 3)
    return np.array_equal(np.sort(cells[:, 0]), np.arange(first, end))


def _as_slice(chosen: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """The same indices, as a slice where they are neighbours: that is one copy."""
    if chosen.size and chosen[-1] - chosen[0] + 1 == chosen.size:
        return slice(int(chosen[0]), int(chosen[-1]) + 1)
    return chosen


def _transposed(state: StateBytes, *, is_transposed: bool) -> StateBytes:
    """The other layout of a `state` whose values are transposed, or are not."""
    layout = _layout_of(state)
    if layout.is_transposed != is_transposed:
        raise UnknownLayout(f"values {'' if layout.is_transposed else 'not '}transposed")
    result = state.copy()
    _SHAPE.pack_into(result.data, layout.shape_at, not is_transposed, layout.layers)
    for block in layout.values:
        element_bytes = block.element_bytes or _ELEMENT_BYTES.get(block.kind, 0)
        element = _ELEMENTS.get(element_bytes)
        if element is None:
            raise UnknownLayout(f"values of the type {block.kind}, {element_bytes} bytes each")
        dimensions = block.rows if is_transposed else block.row_bytes // element_bytes
        before = block.at - _BLOCK_BYTES
        if is_transposed:
            _VALUES_BY_CELL.pack_into(result.data, before, block.kind, dimensions * element_bytes)
        else:
            _VALUES_BY_DIMENSION.pack_into(result.data, before, block.kind, element_bytes, dimensions)
        shape = (dimensions, layout.cells) if is_transposed else (layout.cells, dimensions)
        source = state[block.at : block.end].view(element).reshape(shape)
        result[block.at : block.end].view(element).reshape(shape[::-1])[:] = source.T
    return result


@dataclass(frozen=True, slots=True)
class _Block:
    """Keys or values of a layer.

    Attributes:
        at: where its numbers begin.
        kind: of enum ggml_type.
        rows: cells; of a transposed one dimensions.
        row_bytes: of each.
        element_bytes: of a transposed one, else 0.
    """

    at: int
    kind: int
    rows: int
    row_bytes: int
    element_bytes: int = 0

    @property
    def n_bytes(self) -> int:
        return self.rows * self.row_bytes

    @property
    def end(self) -> int:
        return self.at + self.n_bytes

    @property
    def is_transposed(self) -> bool:
        return self.element_bytes > 0

    @property
    def element(self) -> type[np.unsignedinteger[Any]]:
        found = _ELEMENTS.get(self.element_bytes)
        if found is None:
            raise UnknownLayout(f"elements of {self.element_bytes} bytes")
        return found

    def numbers(self, state: StateBytes) -> NDArray[Any]:
        """View of its numbers in a state, of shape (dimensions, cells) if it is transposed, else (cells,
        bytes of a row)."""
        rows = state[self.at : self.end].reshape(self.rows, self.row_bytes)
        return rows.view(self.element) if self.is_transposed else rows


@dataclass(frozen=True, slots=True)
class _Layout:
    """Layout of a state; `shape_at` is where the cells end."""

    cells: int
    shape_at: int
    layers: int
    is_transposed: bool
    keys: list[_Block]
    values: list[_Block]

    def bytes_of(self, cells: int) -> int:
        """Bytes that `cells` of its cells take."""
        if not self.cells:
            return 0
        return cells * (CELL_HEADER_BYTES + sum(b.n_bytes // self.cells for b in self.keys + self.values))


def _layout_of(state: StateBytes) -> _Layout:
    """Raises:
    UnknownLayout: it is not laid out as the module says.
    """
    try:
        return _parsed(state)
    except struct.error as error:
        raise UnknownLayout(str(error)) from None


def _parsed(state: StateBytes) -> _Layout:
    given = state.data
    _, streams, cells = _PREFIX.unpack_from(given)
    at = _PREFIX.size + cells * CELL_HEADER_BYTES
    flag, layers = _SHAPE.unpack_from(given, at)
    if streams != 1 or flag > 1:
        raise UnknownLayout(f"{streams} streams, values transposed: {flag}")
    layout = _Layout(cells, at, layers, bool(flag), [], [])
    at += _SHAPE.size
    for _ in range(layers):
        kind, row_bytes = _KEY_ROWS.unpack_from(given, at)
        layout.keys.append(_Block(at + _BLOCK_BYTES, kind, cells, row_bytes))
        at = layout.keys[-1].end
    for _ in range(layers):
        if flag:
            kind, element_bytes, rows = _VALUES_BY_DIMENSION.unpack_from(given, at)
            block = _Block(at + _BLOCK_BYTES, kind, rows, cells * element_bytes, element_bytes)
        else:
            kind, row_bytes = _VALUES_BY_CELL.unpack_from(given, at)
            block = _Block(at + _BLOCK_BYTES, kind, cells, row_bytes)
        layout.values.append(block)
        at = block.end
    if at != state.size:
        raise UnknownLayout(f"its layers take {at} bytes of {state.size}")
    return layout
