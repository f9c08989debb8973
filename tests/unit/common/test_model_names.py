"""Names of models, and beginnings of names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.models.model_names import (
    MAX_PATTERNS,
    allows,
    covers,
    intersection,
    parse_patterns,
)

names = st.text(alphabet="ab", max_size=4)
patterns = st.lists(names.filter(bool) | names.map(lambda name: f"{name}*"), min_size=1, max_size=4)


def test_without_patterns_every_model_is_allowed() -> None:
    assert allows((), "demo")


@pytest.mark.parametrize(
    ("pattern", "model", "is_allowed"),
    [
        ("demo", "demo", True),
        ("demo", "demo-2", False),
        ("demo*", "demo", True),
        ("demo*", "demo-2", True),
        ("demo*", "dem", False),
        ("*", "anything", True),
        ("demo", "Demo", False),
    ],
)
def test_a_pattern_is_a_name_or_the_beginning_of_one(pattern: str, model: str, is_allowed: bool) -> None:
    assert allows((pattern,), model) is is_allowed


@given(patterns, patterns, names)
def test_what_is_covered_is_allowed(some: list[str], others: list[str], name: str) -> None:
    assert covers([*some, *others], others)
    if covers(some, others) and allows(others, name):
        assert allows(some, name)


def test_a_beginning_is_not_covered_by_names_that_have_it() -> None:
    assert not covers(["a", "ab*"], ["a*"])


@given(patterns, patterns, names)
def test_an_intersection_allows_what_both_allow(some: list[str], others: list[str], name: str) -> None:
    both = intersection(some, others)
    is_in_both = allows(some, name) and allows(others, name)
    assert (bool(both) and allows(both, name)) is is_in_both


@pytest.mark.parametrize("text", ["", "a*b", "**", "a\nb", "m" * 257, "\x1b[31m"])
def test_what_could_be_no_name_is_refused_by_its_place(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_patterns(["demo", text])
    assert caught.value.field == "models[1]"


def test_there_may_not_be_too_many() -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_patterns(f"m{i}" for i in range(MAX_PATTERNS + 1))
    assert caught.value.field == "models"


def test_each_is_kept_once() -> None:
    assert parse_patterns(["b", "a", "b", "*"]) == ("b", "a", "*")
