"""Lists in pages are the lists, whatever happens between two pages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.pages import MAX_PAGE, check_page_size, page_after

names = st.lists(st.text("abc", min_size=1, max_size=2), unique=True, max_size=9).map(sorted)


@given(names, st.integers(0, 4), st.data())
def test_every_item_that_stays_is_told_once(found: list[str], size: int, data: st.DataObject) -> None:
    told: list[str] = []
    left, after, goes_on = list(found), None, True
    while goes_on:
        page, goes_on = page_after(left, str, after, size)
        assert not size or len(page) <= size
        assert page or not goes_on
        told += page
        after = page[-1] if page else None
        if goes_on and (gone := data.draw(st.none() | st.sampled_from(left))) is not None:
            left.remove(gone)
    assert len(set(told)) == len(told)
    assert set(left) <= set(told)


def test_a_page_of_all_has_none_after_it() -> None:
    assert page_after(["a", "b"], str, None, 0) == (["a", "b"], False)
    assert page_after(["a", "b"], str, None, 2) == (["a", "b"], False)
    assert page_after(["a", "b"], str, "b", 2) == ([], False)


def test_a_page_can_be_too_large() -> None:
    check_page_size(MAX_PAGE)
    with pytest.raises(InvalidArgument) as refused:
        check_page_size(MAX_PAGE + 1)
    assert refused.value.field == "page_size"
