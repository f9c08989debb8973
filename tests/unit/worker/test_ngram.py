"""What followed the same tokens before."""

from __future__ import annotations

import numpy as np
import pytest

from inferflux.worker.engine.plan.ngram import MOST_INDEXED, NgramIndex


def tokens(*given: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(given, np.int32)


def index_of(*given: int) -> NgramIndex:
    made = NgramIndex()
    made.extend(tokens(*given), len(given))
    return made


def test_what_followed_the_last_two_tokens_or_the_last_when_they_came_before_is_drafted() -> None:
    found = index_of(5, 6, 7, 5, 6, 8, 5, 6)
    assert (found.length, found.draft(2)) == (2, [8, 5])
    found = index_of(5, 6, 7, 8, 6)
    assert (found.length, found.draft(2)) == (1, [7, 8])


def test_new_tokens_are_found_nowhere() -> None:
    for given in ((), (1,), (1, 2, 3)):
        assert index_of(*given).length == 0


def test_a_run_is_followed_until_another_token_comes() -> None:
    text = tokens(1, 2, 3, 4, 5, 9, 1, 2, 3, 8, 2, 3)
    index = NgramIndex()
    assert index.extend(text, 7) == []
    assert index.length == 1
    assert index.extend(text, 8) == [(1, True)]
    assert index.extend(text, 10) == [(2, True), (3, False)]
    assert index.length == 0
    assert index.extend(text, 12) == [(1, True)], "what followed 2 before is the 3 after it"


@pytest.mark.parametrize("step", [1, 3, 40])
def test_it_does_not_matter_how_many_tokens_come_at_a_time(step: int) -> None:
    text = np.random.default_rng(2).integers(0, 4, 200).astype(np.int32)
    one_by_one, grown = NgramIndex(), NgramIndex()
    one_by_one.extend(text, step)
    grown.extend(text, step)
    for n in range(2 * step, 201, step):
        followed = [one for last in range(n - step + 1, n + 1) for one in one_by_one.extend(text, last)]
        assert grown.extend(text, n) == followed
        assert (grown.length, grown.draft(5)) == (one_by_one.length, one_by_one.draft(5))


def test_a_continuation_that_reaches_the_end_repeats() -> None:
    assert index_of(7, 1, 2, 1, 2).draft(5) == [1, 2, 1, 2, 1]
    assert index_of(3, 3).draft(4) == [3, 3, 3, 3]


def test_of_a_very_long_prompt_the_end_is_looked_up() -> None:
    text = np.arange(MOST_INDEXED + 100, dtype=np.int32)
    text[-1] = text[-50]
    index = NgramIndex()
    index.extend(text, len(text))
    assert index.draft(2) == [len(text) - 49, len(text) - 48]
    longer = np.append(text, text[-49]).astype(np.int32)
    assert index.extend(longer, len(longer)) == [(1, True)]
    text[-1] = text[50]
    index = NgramIndex()
    index.extend(text, len(text))
    assert index.length == 0
