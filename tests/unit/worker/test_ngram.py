"""What followed the same tokens before."""

from __future__ import annotations

import numpy as np
import pytest

from inferflux.worker.engine.ngram import NgramIndex, continuation


def tokens(*given: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(given, np.int32)


def test_the_latest_occurrence_of_the_longest_run_is_found() -> None:
    text = tokens(1, 2, 3, 4, 9, 3, 4, 8, 1, 2, 3, 4)
    assert NgramIndex().find(text) == (4, 4)
    assert NgramIndex().find(tokens(5, 6, 7, 5, 6, 8, 5, 6)) == (2, 5)


def test_new_tokens_and_short_texts_are_found_nowhere() -> None:
    for text in (tokens(), tokens(1), tokens(1, 1), tokens(1, 2, 3), tokens(1, 2, 3, 1)):
        assert NgramIndex().find(text) is None
    assert NgramIndex().find(tokens(1, 1, 1)) == (2, 2)


@pytest.mark.parametrize("step", [1, 3, 40])
def test_it_does_not_matter_how_many_tokens_come_at_a_time(step: int) -> None:
    text = np.random.default_rng(2).integers(0, 4, 200).astype(np.int32)
    grown = NgramIndex()
    for n in range(step, 201, step):
        assert grown.find(text[:n]) == NgramIndex().find(text[:n])


def test_a_continuation_that_reaches_the_end_repeats() -> None:
    text = tokens(7, 1, 2, 1, 2)
    assert continuation(text, 3, 5).tolist() == [1, 2, 1, 2, 1]
    assert continuation(text, 1, 2).tolist() == [1, 2]
