"""Words are found where they are, however many automata there are and however a text is cut for them."""

from __future__ import annotations

import pytest
from harness.profiles import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferflux.common.text.guardrails import words
from inferflux.common.text.guardrails.words import WordFinder

LETTERS = st.sampled_from("abé漢🙂")
WORDS = st.sets(st.text(LETTERS, min_size=1, max_size=5), max_size=12)
TEXTS = st.text(LETTERS, max_size=40)


@pytest.fixture(params=[1, 7, 1 << 16])
def _sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_WORDS_AT_ONCE", request.param)
    monkeypatch.setattr(words, "_TEXT_AT_ONCE", request.param)


@pytest.mark.usefixtures("_sizes")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(200))
@given(known=WORDS, text=TEXTS)
def test_every_end_of_every_word_is_found_in_order(known: set[str], text: str) -> None:
    finder = WordFinder({word: word for word in sorted(known)})
    found = list(finder.ends(text))
    wanted = [(end, word) for end in range(1, len(text) + 1) for word in known if text[:end].endswith(word)]
    assert sorted(found) == sorted(wanted)
    assert [end for end, _ in found] == sorted(end for end, _ in found)


@pytest.mark.usefixtures("_sizes")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(200))
@given(known=WORDS, text=TEXTS)
def test_an_end_that_a_word_begins_with_is_open(known: set[str], text: str) -> None:
    finder = WordFinder({word: word for word in sorted(known)})
    begun = [start for start in range(len(text)) if any(word.startswith(text[start:]) for word in known)]
    assert finder.open_end(text) == min(begun, default=len(text))
