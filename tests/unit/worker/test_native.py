"""What llama.cpp is asked for."""

from __future__ import annotations

import pytest

from inferflux.common.contract.checks import MAX_SEQUENCES
from inferflux.worker.files.fit import whole_cells


@pytest.mark.parametrize(("asked", "given"), [(1, 256), (256, 256), (257, 512), (4096, 4096)])
def test_cells_are_those_that_llama_cpp_makes_of_them(asked: int, given: int) -> None:
    assert whole_cells(asked) == given


def test_a_token_of_every_sequence_fits_the_smallest_cache() -> None:
    assert whole_cells(1) >= MAX_SEQUENCES
