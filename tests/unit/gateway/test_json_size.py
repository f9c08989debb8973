"""How much work a body makes is counted as its bytes arrive."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.gateway.http.errors.errors import BodyTooLarge
from inferflux.gateway.http.front.json_size import MAX_NAMES, MAX_VALUES, JsonSize, check_json_size

TEXTS = st.text(alphabet='ab\\",[]{}:\n\u00e9\ud7ff', max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=30,
)


def counted(value: Any) -> tuple[int, int, int]:
    """Values, names, and containers that are empty."""
    inner = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
    found = [counted(one) for one in inner]
    is_empty = isinstance(value, list | dict) and not value
    n_names = len(value) if isinstance(value, dict) else 0
    return (
        1 + sum(values for values, _, _ in found),
        n_names + sum(names for _, names, _ in found),
        is_empty + sum(empty for _, _, empty in found),
    )


@given(VALUES, st.booleans(), st.lists(st.integers(0, 400), max_size=20))
def test_values_and_names_are_counted_wherever_the_pieces_are_cut(
    value: Any, is_ascii: bool, cuts: Sequence[int]
) -> None:
    data = json.dumps(value, ensure_ascii=is_ascii).encode()
    size = JsonSize()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for first, last in pairwise(edges):
        size.feed(data[first:last])
    values, names, empty = counted(value)
    assert (size.values, size.names) == (values + empty, names)


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b"1," * MAX_VALUES + b"1]",
        b"[" * (2 * MAX_VALUES),
        b"[" + b"{}," * MAX_VALUES + b"1]",
        b"{" + b'"":1,' * MAX_NAMES + b'"":1}',
    ],
    ids=["values", "depth", "objects", "names"],
)
def test_too_much_work_is_refused(text: bytes) -> None:
    with pytest.raises(BodyTooLarge) as caught:
        check_json_size(text)
    assert caught.value.reason == "BODY_TOO_COMPLEX"


def test_a_long_text_is_one_value() -> None:
    check_json_size(json.dumps({"prompt": '{"a": [1, 2]}, \\' * 200_000}).encode())


def test_as_much_as_is_taken_is_taken() -> None:
    check_json_size(json.dumps([1] * (MAX_VALUES - 1)).encode())
    check_json_size(json.dumps({str(i): 1 for i in range(MAX_NAMES)}).encode())
