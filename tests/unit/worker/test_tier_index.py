"""The longest kept prefix is found, within its scope, and by the tokens alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.engine.tiers.index import BLOCK, TokenIndex, common_prefix

SCOPES = st.sampled_from(["a", "b"])
# Of few blocks and few kinds of them, so that prefixes are shared.
TOKENS = st.lists(st.sampled_from([0, 1]), max_size=4).map(
    lambda blocks: np.repeat(np.array(blocks, np.int32), BLOCK - 2)
)


@given(st.lists(st.tuples(SCOPES, TOKENS)), SCOPES, TOKENS, st.integers(0, 60), st.data())
def test_the_longest_prefix_is_found_as_by_looking_at_all(
    kept: list[tuple[str, np.ndarray[tuple[int], np.dtype[np.int32]]]],
    scope: str,
    wanted: np.ndarray[tuple[int], np.dtype[np.int32]],
    most: int,
    data: st.DataObject,
) -> None:
    index: TokenIndex[int] = TokenIndex()
    for i, (of, tokens) in enumerate(kept):
        index.add(of, tokens, i)
    gone = data.draw(st.sets(st.integers(0, len(kept) - 1))) if kept else set()
    for i in gone:
        index.remove(*kept[i], i)
    lengths = {
        i: common_prefix(tokens, wanted[:most])
        for i, (of, tokens) in enumerate(kept)
        if of == scope and i not in gone
    }
    expected = sorted((n for n in lengths.values() if n >= BLOCK), reverse=True)
    found = list(index.find(scope, wanted, most))
    assert [f.matched for f in found] == expected
    assert all(lengths[f.value] == f.matched for f in found)


def test_nothing_is_left_of_what_is_removed() -> None:
    index: TokenIndex[str] = TokenIndex()
    tokens = np.arange(100, dtype=np.int32)
    index.add("a", tokens, "value")
    index.remove("a", tokens, "value")
    index.remove("a", tokens, "value")
    assert not index._by_block
