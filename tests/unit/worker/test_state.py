"""States of the two kinds of contexts hold the same numbers in another order."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from inferflux.worker.engine.llama.pinned_state import (
    StateBytes,
    UnknownLayout,
    by_cell,
    by_dimension,
    first_positions,
    has_positions,
)
from inferflux.worker.engine.llama.prefill_context import n_due


def state(*, cells: int, layers: int, dimensions: int, is_transposed: bool) -> bytes:
    """As llama.cpp writes it, its keys and values being numbers that tell where they belong."""
    parts = [struct.pack("<IiII", 7, 3, 1, cells)]
    parts += [struct.pack("<iIi", position, 1, 3) for position in range(cells)]
    parts.append(struct.pack("<II", is_transposed, layers))
    for layer in range(layers):
        keys = np.arange(cells * dimensions, dtype="<u2") + layer
        parts += [struct.pack("<iQ", 1, dimensions * 2), keys.tobytes()]
    for layer in range(layers):
        values = np.arange(cells * dimensions, dtype="<u2").reshape(cells, dimensions) + 1000 * layer
        if is_transposed:
            parts += [struct.pack("<iII", 1, 2, dimensions), values.T.tobytes()]
        else:
            parts += [struct.pack("<iQ", 1, dimensions * 2), values.tobytes()]
    return b"".join(parts)


LAYERS = 2
DIMENSIONS = 6


def positions_of(data: bytes, cells: int) -> list[int]:
    return list(np.frombuffer(data, "<i4", 3 * cells, 16).reshape(cells, 3)[:, 0])


def blocks_of(data: bytes, cells: int) -> NDArray[np.uint16]:
    """Keys and values of both layers as they stand there, of shape (2 * layers, cells * dimensions)."""
    n_bytes = cells * DIMENSIONS * 2
    at = 16 + 12 * cells + 8
    starts = [at + 12 + i * (12 + n_bytes) for i in range(2 * LAYERS)]
    return np.array([np.frombuffer(data, "<u2", cells * DIMENSIONS, start) for start in starts])


def values_of(data: bytes, cells: int, *, is_transposed: bool) -> NDArray[np.uint16]:
    """Keys and values of both layers, of shape (cells, 2 * layers, dimensions)."""
    keys, values = np.split(blocks_of(data, cells), 2)
    keys = keys.reshape(LAYERS, cells, DIMENSIONS)
    if is_transposed:
        values = values.reshape(LAYERS, DIMENSIONS, cells).swapaxes(1, 2)
    values = values.reshape(LAYERS, cells, DIMENSIONS)
    return np.concatenate([keys, values]).swapaxes(0, 1)


def shuffled(data: bytes, order: list[int], *, is_transposed: bool) -> bytes:
    """A state of the same cells in another order."""
    cells = len(order)
    changed = bytearray(data)
    table = np.frombuffer(data, "<i4", 3 * cells, 16).reshape(cells, 3)
    changed[16 : 16 + 12 * cells] = table[order].tobytes()
    n_bytes = cells * DIMENSIONS * 2
    for i, block in enumerate(blocks_of(data, cells)):
        start = 16 + 12 * cells + 8 + 12 + i * (12 + n_bytes)
        if is_transposed and i >= LAYERS:
            moved = block.reshape(DIMENSIONS, cells)[:, order]
        else:
            moved = block.reshape(cells, DIMENSIONS)[order]
        changed[start : start + n_bytes] = moved.tobytes()
    return bytes(changed)


def array(data: bytes) -> StateBytes:
    return np.frombuffer(data, np.uint8).copy()


@given(st.integers(1, 70), st.integers(1, 3), st.integers(1, 9))
def test_values_are_put_by_cell(cells: int, layers: int, dimensions: int) -> None:
    given_state = state(cells=cells, layers=layers, dimensions=dimensions, is_transposed=True)
    wanted = state(cells=cells, layers=layers, dimensions=dimensions, is_transposed=False)
    assert by_cell(array(given_state)).tobytes() == wanted
    assert by_dimension(array(wanted)).tobytes() == given_state


def test_a_state_that_is_laid_out_so_already_is_refused() -> None:
    with pytest.raises(UnknownLayout, match="not transposed"):
        by_cell(array(state(cells=3, layers=2, dimensions=4, is_transposed=False)))
    with pytest.raises(UnknownLayout, match="values transposed"):
        by_dimension(array(state(cells=3, layers=2, dimensions=4, is_transposed=True)))


@given(st.integers(0, 400))
def test_a_state_that_is_cut_off_is_refused(n_bytes: int) -> None:
    whole = state(cells=5, layers=2, dimensions=4, is_transposed=True)
    with pytest.raises(UnknownLayout):
        by_cell(array(whole[: min(n_bytes, len(whole) - 1)]))


def test_a_state_with_more_behind_it_is_refused() -> None:
    with pytest.raises(UnknownLayout, match="its layers take 204 bytes of 208"):
        by_cell(array(state(cells=3, layers=2, dimensions=4, is_transposed=True) + b"more"))


@given(st.integers(1, 40), st.booleans(), st.data())
def test_the_first_positions_of_a_state_are_cut_out(
    cells: int, is_transposed: bool, data: st.DataObject
) -> None:
    n = data.draw(st.integers(1, cells))
    whole = state(cells=cells, layers=LAYERS, dimensions=DIMENSIONS, is_transposed=is_transposed)
    order = data.draw(st.permutations(range(cells)))
    cut = first_positions(array(shuffled(whole, order, is_transposed=is_transposed)), n)
    kept = [position for position in order if position < n]
    numbers = [values_of(cut.tobytes(), n, is_transposed=is_transposed)[kept.index(p)] for p in range(n)]
    assert np.array_equal(numbers, values_of(whole, cells, is_transposed=is_transposed)[:n])
    assert positions_of(cut.tobytes(), n) == kept
    assert cut.size == len(state(cells=n, layers=LAYERS, dimensions=DIMENSIONS, is_transposed=is_transposed))
    assert first_positions(cut, n).tobytes() == cut.tobytes()


@pytest.mark.parametrize(("first", "end"), [(0, 5), (0, 3), (1, 5), (0, 2**20)])
def test_a_state_with_other_positions_is_told(first: int, end: int) -> None:
    whole = array(state(cells=4, layers=1, dimensions=2, is_transposed=False))
    assert has_positions(whole, 0, 4)
    assert not has_positions(whole, first, end)
    assert not has_positions(whole[:20], 0, 4)
    for position in (-1, 2, 4):
        whole[16:20].view("<i4")[0] = position
        assert not has_positions(whole, 0, 4)


def test_positions_that_a_state_lacks_are_not_cut_out() -> None:
    with pytest.raises(UnknownLayout, match="3 cells for the first 4 positions"):
        first_positions(array(state(cells=3, layers=1, dimensions=2, is_transposed=False)), 4)


@given(st.integers(1, 5000), st.data())
def test_a_prompt_is_copied_late_in_pieces_and_all_of_it(prompt: int, data: st.DataObject) -> None:
    step = data.draw(st.integers(1, 300))
    computed = copied = 0
    pieces = []
    while computed < prompt:
        n = min(step, prompt - computed)
        computed += n
        pieces.append(n_due(computed - copied, prompt - computed, n))
        copied += pieces[-1]
        assert copied <= computed
    assert copied == prompt
    assert max(pieces) <= 256 + step
    if prompt <= 256:
        assert pieces[:-1] == [0] * (len(pieces) - 1)
