"""The longest kept prefix is found, within its scope, and by the tokens alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.engine.kv.envelope import TokenArray
from inferflux.worker.engine.tiers import index as tier_index
from inferflux.worker.engine.tiers.index import BLOCK, Found, TokenIndex, common_prefix

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


class OneHash(str):
    """A scope whose hash is that of every other."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 1


def test_scopes_whose_hashes_are_the_same_find_nothing_of_each_other() -> None:
    index: TokenIndex[str] = TokenIndex()
    tokens = np.arange(100, dtype=np.int32)
    index.add(OneHash("a"), tokens, "of a")
    assert [f.value for f in index.find(OneHash("a"), tokens, 100)] == ["of a"]
    assert list(index.find(OneHash("b"), tokens, 100)) == []


def test_those_that_begin_alike_are_not_all_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    index: TokenIndex[int] = TokenIndex()
    shared = np.arange(10 * BLOCK, dtype=np.int32)
    for i in range(500):
        index.add("a", np.append(shared, np.full(BLOCK, 1000 + i, np.int32)), i)
    compared: list[int] = []

    def counted(a: TokenArray, b: TokenArray) -> int:
        compared.append(1)
        return common_prefix(a, b)

    monkeypatch.setattr(tier_index, "common_prefix", counted)
    own, other = np.append(shared, np.full(4, 1007, np.int32)), np.append(shared, np.int32(7))
    found = index.find("a", own, 500)
    assert next(found) == Found(7, 10 * BLOCK + 4)
    assert next(index.find("a", other, 500)).matched == 10 * BLOCK
    assert len(compared) < 5
