"""Lists that are long as often as they are short."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


def long_lists(elements: st.SearchStrategy[T], *, max_size: int) -> st.SearchStrategy[list[T]]:
    """Lists of any length up to `max_size`. Those of `st.lists` have 5 elements in the mean, if nothing says
    how many there are at least: what takes several steps to go wrong is then seldom seen."""
    return st.integers(0, max_size).flatmap(lambda n: st.lists(elements, min_size=n, max_size=max_size))
