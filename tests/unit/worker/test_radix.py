"""The longest known prefix of a prompt is found, within its scope alone."""

from __future__ import annotations

import numpy as np
import pytest
from harness.long_lists import long_lists
from harness.profiles import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from inferflux.worker.engine.kv import radix
from inferflux.worker.engine.kv.radix import HALF_LIFE, Eviction, Match, RadixPrefixCache, TokenArray

SCOPE = "tenant/a"


def ids(*tokens: int) -> TokenArray:
    return np.array(tokens, np.int32)


def cached(*sequences: tuple[int, ...]) -> RadixPrefixCache:
    """Sequences that have ended, held by 0, 1, ... in this order."""
    cache = RadixPrefixCache()
    for holder, tokens in enumerate(sequences):
        cache.hold(SCOPE, ids(*tokens), holder)
        cache.unpin(holder)
    return cache


def test_the_longest_prefix_is_found_also_within_an_edge() -> None:
    cache = cached((1, 2, 3, 4), (1, 2, 7, 8))
    assert cache.lookup(SCOPE, ids(1, 2, 7, 9)) == Match(3, 1)
    assert cache.lookup(SCOPE, ids(1, 2, 3, 4, 5)) == Match(4, 0)
    assert cache.lookup(SCOPE, ids(1, 9)).matched_tokens == 1
    assert cache.lookup(SCOPE, ids(2)) == Match(0, None)


def test_scopes_do_not_see_each_other() -> None:
    cache = cached((1, 2, 3))
    assert cache.lookup("tenant/b", ids(1, 2, 3)) == Match(0, None)


def test_what_a_longer_sequence_has_too_is_not_kept_twice() -> None:
    cache = cached((1, 2), (5, 6))
    assert cache.hold(SCOPE, ids(1, 2, 3), 7) == [0]
    assert cache.hold(SCOPE, ids(5), 8) == []
    assert not cache.unpin(8), "another holds all of it"
    assert len(cache) == 2


def test_a_running_sequence_is_shared_from_and_not_evicted() -> None:
    cache = RadixPrefixCache()
    cache.hold(SCOPE, ids(1, 2, 3), 4)
    assert cache.evict() is None
    assert cache.lookup(SCOPE, ids(1, 2, 9)) == Match(2, 4)
    cache.hold(SCOPE, ids(1, 2, 3, 5, 6), 4)
    cache.unpin(4)
    assert cache.lookup(SCOPE, ids(1, 2, 3, 5, 6)) == Match(5, 4)


def use(cache: RadixPrefixCache, *tokens: int) -> None:
    cache.use(cache.lookup(SCOPE, ids(*tokens)))


def test_of_pieces_that_were_used_once_the_longest_unused_is_evicted() -> None:
    cache = cached((1, 2, 3), (1, 2, 4), (7, 8))
    use(cache, 1, 2, 3)
    assert cache.evict() == Eviction(1, 0)
    assert cache.evict() == Eviction(2, 0)
    assert cache.lookup(SCOPE, ids(1, 2, 3)) == Match(3, 0)


def test_a_beginning_that_is_used_outlives_the_ends_that_are_not() -> None:
    cache = cached((1, 2, 3), (1, 2, 4), (7, 8))
    use(cache, 1, 2)
    assert cache.evict() == Eviction(0, 0)
    assert cache.evict() == Eviction(1, 2), "the last that has the beginning is cut back to it"
    assert cache.lookup(SCOPE, ids(1, 2, 4)) == Match(2, 1)
    assert list(cache.tokens_of(1)) == [1, 2]
    assert cache.evict() == Eviction(2, 0)
    assert cache.evict() == Eviction(1, 0)
    assert cache.evict() is None
    assert len(cache) == 0


def test_what_was_often_used_outlives_what_is_new_for_a_while() -> None:
    cache = cached((1, 2, 3))
    for _ in range(3):
        use(cache, 1, 2, 3)

    def requests_it_outlives(n: int) -> bool:
        for first in range(n):
            cache.hold(SCOPE, ids(9, first), 1)
            cache.unpin(1)
            cache.drop(1)
        cache.hold(SCOPE, ids(8), 1)
        cache.unpin(1)
        return cache.evict() == Eviction(1, 0)

    assert requests_it_outlives(HALF_LIFE)
    assert not requests_it_outlives(2 * HALF_LIFE)


def test_looking_alone_is_no_use() -> None:
    cache = cached((1, 2, 3), (7, 8))
    cache.lookup(SCOPE, ids(1, 2, 3))
    assert cache.evict() == Eviction(0, 0)


def test_a_beginning_counts_the_requests_that_go_on_from_within_it() -> None:
    cache = cached((1, 2, 3, 4), (7, 8))
    use(cache, 1, 2, 9)
    cache.hold(SCOPE, ids(1, 2, 9), 5)
    cache.unpin(5)
    assert cache.evict() == Eviction(0, 0), "its end was used once, and before all others"
    assert cache.evict() == Eviction(1, 0)
    assert cache.evict() == Eviction(5, 2)


def evicted_and_computed_again() -> RadixPrefixCache:
    """(1, 2) was used five times, evicted, and is computed again; (7, 8) was used twice, and later."""
    cache = cached((1, 2))
    for _ in range(4):
        use(cache, 1, 2)
    assert cache.evict() == Eviction(0, 0)
    assert cache.lookup(SCOPE, ids(1, 2)) == Match(0, None)
    cache.hold(SCOPE, ids(1, 2, 3), 4)
    cache.unpin(4)
    cache.hold(SCOPE, ids(7, 8), 5)
    cache.unpin(5)
    use(cache, 7, 8)
    return cache


def test_what_is_computed_again_goes_on_with_the_uses_it_had() -> None:
    cache = evicted_and_computed_again()
    assert [cache.evict() for _ in range(3)] == [Eviction(4, 2), Eviction(5, 0), Eviction(4, 0)]


def test_what_is_remembered_has_a_bound_and_the_least_used_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(radix, "_MOST_REMEMBERED", 1000)
    cache = cached((1, 2))
    for _ in range(4):
        use(cache, 1, 2)
    cache.drop(0)
    for first in range(200):
        cache.hold(f"tenant/{first}", ids(9, first), 1)
        cache.drop(1)
        assert cache._remembered_size <= 1000
    assert len(cache._roots) < 20
    cache.hold(SCOPE, ids(1, 2), 4)
    cache.hold(SCOPE, ids(7, 8), 5)
    for holder in (4, 5):
        cache.unpin(holder)
    assert cache.evict() == Eviction(5, 0)


_TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=8)
_Step = tuple[str, int, str, list[int]]
_STEPS = long_lists(
    st.tuples(
        st.sampled_from(["hold", "hold", "unpin", "drop", "evict", "lookup", "clear"]),
        st.integers(0, 7),
        st.sampled_from(["s", "t"]),
        _TOKENS,
    ),
    max_size=50,
)


def _n_common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class NaiveTree:
    """A list of sequences, beside the tree that is to say the same."""

    def __init__(self, *, is_divisible: bool) -> None:
        self.is_divisible = is_divisible
        self.cache = RadixPrefixCache(is_divisible=is_divisible)
        self.held: dict[int, tuple[str, list[int]]] = {}
        self.pinned: set[int] = set()

    def _beginnings(self, scope: str, tokens: list[int]) -> set[int]:
        return {
            holder for holder, (s, t) in self.held.items() if s == scope and tokens[: len(t)] == t
        } - self.pinned

    def hold(self, holder: int, scope: str, tokens: list[int]) -> None:
        if holder in self.held:
            return
        lost = self._beginnings(scope, tokens) if self.is_divisible else set()
        assert set(self.cache.hold(scope, ids(*tokens), holder)) == lost
        self.held[holder] = scope, tokens
        self.pinned.add(holder)
        for other in lost:
            del self.held[other]

    def unpin(self, holder: int) -> None:
        if holder not in self.pinned:
            return
        self.pinned.remove(holder)
        scope, tokens = self.held.pop(holder)
        if self.is_divisible:
            is_covered = any(t[: len(tokens)] == tokens for s, t in self.held.values() if s == scope)
        else:
            is_covered = any(self.held[h] == (scope, tokens) for h in set(self.held) - self.pinned)
        assert self.cache.unpin(holder) != is_covered
        if not is_covered:
            self.held[holder] = scope, tokens

    def drop(self, holder: int) -> None:
        self.cache.drop(holder)
        self.held.pop(holder, None)
        self.pinned.discard(holder)

    def evict(self) -> None:
        eviction = self.cache.evict()
        assert (eviction is None) == (set(self.held) <= self.pinned)
        if eviction is None:
            return
        assert eviction.holder not in self.pinned
        scope, tokens = self.held.pop(eviction.holder)
        assert eviction.kept_tokens < len(tokens)
        assert self.is_divisible or not eviction.kept_tokens
        if eviction.kept_tokens:
            self.held[eviction.holder] = scope, tokens[: eviction.kept_tokens]

    def clear(self, scope: str) -> None:
        expected = {
            h for h, (its_scope, _) in self.held.items() if h not in self.pinned and scope in ("", its_scope)
        }
        assert set(self.cache.clear(scope)) == expected
        for holder in expected:
            del self.held[holder]

    def lookup(self, scope: str, tokens: list[int]) -> None:
        found = self.cache.lookup(scope, ids(*tokens))
        lengths = {h: _n_common(t, tokens) for h, (s, t) in self.held.items() if s == scope}
        assert found.matched_tokens == max(lengths.values(), default=0)
        if found.holder is not None:
            assert lengths[found.holder] == found.matched_tokens
        self.candidates(scope, tokens, lengths)

    def candidates(self, scope: str, tokens: list[int], lengths: dict[int, int]) -> None:
        found = list(self.cache.candidates(scope, ids(*tokens), 2))
        matched = [match.matched_tokens for match in found]
        assert matched == sorted(matched, reverse=True)
        assert all(
            match.holder is not None and lengths[match.holder] >= match.matched_tokens for match in found
        )
        assert max(matched, default=0) == max(lengths.values(), default=0)
        whole = {h for h, n in lengths.items() if n == len(self.held[h][1])}
        assert whole <= {
            match.holder for match in found if match.matched_tokens == lengths[match.holder or 0]
        }

    def check(self) -> None:
        assert len(self.cache) == len(self.held)
        assert self.cache.n_evictable == len(set(self.held) - self.pinned)
        for holder, (scope, tokens) in self.held.items():
            assert self.cache.scope_of(holder) == scope
            assert list(self.cache.tokens_of(holder)) == tokens


@given(_STEPS, st.booleans())
@settings(max_examples=examples(150))
def test_it_says_the_same_as_a_list_of_sequences(steps: list[_Step], is_divisible: bool) -> None:
    naive = NaiveTree(is_divisible=is_divisible)
    for kind, holder, scope, tokens in steps:
        match kind:
            case "hold":
                naive.hold(holder, scope, tokens)
            case "unpin":
                naive.unpin(holder)
            case "drop":
                naive.drop(holder)
            case "evict":
                naive.evict()
            case "lookup":
                naive.lookup(scope, tokens)
            case "clear":
                naive.clear(scope if holder % 2 else "")
        naive.check()
    for holder in list(naive.held):
        naive.drop(holder)
    for scope in ("s", "t"):
        assert naive.cache.lookup(scope, ids(0, 1)) == Match(0, None)
    naive.cache.clear()
    assert (naive.cache._roots, naive.cache.n_tokens, naive.cache._remembered_size) == ({}, 0, 0)
