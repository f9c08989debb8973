"""States of the two kinds of contexts hold the same numbers in another order."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.engine.prefill_context import n_due
from inferflux.worker.engine.state import StateBytes, UnknownLayout, by_cell, by_dimension


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
    with pytest.raises(UnknownLayout, match="4 bytes more"):
        by_cell(array(state(cells=3, layers=2, dimensions=4, is_transposed=True) + b"more"))


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
