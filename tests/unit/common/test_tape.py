"""A text that comes in parts is read as a whole one, and again from its mark."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.text.answers.tape import Markers, Tape

MARKER = "<ab>"


def tape(*parts: str) -> Tape:
    made = Tape()
    for part in parts:
        made.feed(part)
    return made


def test_a_beginning_of_a_marker_is_left_until_it_is_certain() -> None:
    markers = Markers([MARKER])
    one = tape("x <a")
    assert one.take_before(markers) == ("x ", None)
    one.feed("b>y")
    assert one.take_before(markers) == ("", MARKER)
    one.skip(len(MARKER))
    assert one.take_before(markers) == ("y", None)
    one.feed("<a")
    one.is_final = True
    assert one.take_before(markers) == ("<a", None)
    assert not one


def test_the_leftmost_marker_counts_and_the_longest_of_those_that_begin_there() -> None:
    markers = Markers(["<a>", "<a>b", "a>bc"])
    assert tape("-<a>").take_before(markers) == ("-", None)
    assert tape("-<a>c").take_before(markers) == ("-", "<a>")
    assert tape("-<a>bc").take_before(markers) == ("-", "<a>b")


@pytest.mark.parametrize(
    ("text", "may_become", "starts_with"),
    [
        ("", True, False),
        ("<a", True, False),
        ("<ab>", False, True),
        ("<ab>c", False, True),
        ("<b", False, False),
    ],
)
def test_what_comes_next_is_a_marker_or_may_become_one(
    text: str, may_become: bool, starts_with: bool
) -> None:
    one = tape("-" + text)
    one.skip(1)
    assert (one.may_become(MARKER), one.starts_with(MARKER)) == (may_become, starts_with)


def test_there_is_no_way_back_without_a_mark() -> None:
    one = tape("ab")
    with pytest.raises(RuntimeError):
        one.rewind()
    one.mark()
    one.unmark()
    with pytest.raises(RuntimeError):
        one.rewind()


@given(st.text("<ab>x "), st.lists(st.integers(0, 40)), st.integers(0, 40), st.lists(st.integers(0, 3)))
def test_from_its_mark_on_a_text_is_read_again_however_it_came(
    text: str, cuts: list[int], mark: int, steps: list[int]
) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[a:b] for a, b in itertools.pairwise(places)]
    one, n_read, marked_at = Tape(), 0, None
    for part, end in zip(parts, places[1:], strict=True):
        one.feed(part)
        for step in steps:
            if marked_at is None and n_read >= mark:
                one.mark()
                marked_at = n_read
            n = min(step, end - n_read)
            assert one.next == text[n_read:end][:1]
            one.skip(n)
            n_read += n
    if marked_at is not None:
        one.rewind()
        n_read = marked_at
    assert one.take_all() == text[n_read:]
