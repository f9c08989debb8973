"""Which changes of the index follow from what the engine reports of its cache."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from harness.long_lists import long_lists
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.prefixes.hashes import PrefixHasher, packed
from inferflux.common.prefixes.index import BLOCKS_AT_ONCE, Change, Tier
from inferflux.v1 import engine_pb2, generation_pb2
from inferflux.worker.model.cached_prefixes import CachedPrefixes

HASHER = PrefixHasher(bytes(32), model_digest="digest", block_tokens=2)
DEVICE, HOST = generation_pb2.CACHE_TIER_DEVICE, generation_pb2.CACHE_TIER_HOST


class Index:
    """What Redis does with changes."""

    def __init__(self) -> None:
        self.version: int | None = None
        self.blocks: dict[bytes, tuple[Tier, int]] = {}
        self.usable: dict[bytes, int] = {}

    def write(self, changes: Iterable[Change]) -> bool:
        written = [self._write(change) for change in changes]
        return all(written)

    def _write(self, change: Change) -> bool:
        assert len(change.removed) + len(change.added) <= BLOCKS_AT_ONCE
        if change.version is None:
            self.blocks.clear()
            self.usable.clear()
        elif change.version != self.version:
            return False
        self.version = change.new_version
        for gone in change.removed:
            self.blocks.pop(gone, None)
            self.usable.pop(gone, None)
        self.blocks |= {block.hash: (block.tier, block.last_used_s) for block in change.added}
        self.usable |= {block.hash: block.usable for block in change.added}
        return True


def cached(
    entry: int,
    tokens: Iterable[int],
    tier: generation_pb2.CacheTier.ValueType = DEVICE,
    *,
    is_indivisible: bool = False,
) -> engine_pb2.CachedPrefix:
    return engine_pb2.CachedPrefix(
        entry=entry,
        token_ids=packed(list(tokens)),
        cache_scope="tenant/acme",
        tier=tier,
        is_indivisible=is_indivisible,
    )


def hashes(tokens: Iterable[int]) -> list[bytes]:
    return HASHER.of(packed(list(tokens)), "tenant/acme")


def prefixes() -> CachedPrefixes:
    return CachedPrefixes(HASHER.of)


def test_a_block_that_two_sequences_share_goes_with_the_last() -> None:
    made, index = prefixes(), Index()
    made.report(cached(1, [1, 2, 3, 4]), 10)
    made.report(cached(2, [1, 2, 5, 6]), 11)
    made.report(cached(1, []), 12)
    assert index.write(made.take_changes())
    assert set(index.blocks) == set(hashes([1, 2, 5, 6]))
    made.report(cached(2, []), 13)
    assert index.write(made.take_changes())
    assert index.blocks == {}
    assert not made.has_changes


def test_a_shared_block_is_where_it_is_nearest() -> None:
    made, index = prefixes(), Index()
    made.report(cached(1, [1, 2], HOST), 10)
    made.report(cached(2, [1, 2], DEVICE), 11)
    index.write(made.take_changes())
    assert index.blocks[hashes([1, 2])[0]][0] is Tier.DEVICE
    made.report(cached(2, []), 12)
    index.write(made.take_changes())
    assert index.blocks[hashes([1, 2])[0]][0] is Tier.HOST


def test_a_tier_that_this_version_does_not_know_counts_as_the_farthest() -> None:
    made, index = prefixes(), Index()
    message = cached(1, [1, 2])
    message.tier = cast("generation_pb2.CacheTier.ValueType", 77)
    made.report(message, 10)
    index.write(made.take_changes())
    assert index.blocks[hashes([1, 2])[0]][0] is Tier.DISK


def test_a_sequence_that_is_used_again_says_when() -> None:
    made, index = prefixes(), Index()
    made.report(cached(1, [1, 2, 3, 4]), 10)
    index.write(made.take_changes())
    made.report(cached(1, [1, 2, 3, 4]), 20)
    changes = list(made.take_changes())
    assert [len(change.added) for change in changes] == [1]
    index.write(changes)
    assert index.blocks[hashes([1, 2, 3, 4])[-1]] == (Tier.DEVICE, 20)


def test_what_comes_and_goes_while_nothing_can_be_written_is_not_remembered() -> None:
    made, index = prefixes(), Index()
    made.report(cached(1, [1, 2]), 10)
    index.write(made.take_changes())
    made.report(cached(2, [3, 4]), 10)
    made.begin_anew()
    for n in range(100):
        made.report(cached(3, [n, n + 1, n + 2, n + 3]), 11)
    assert not made._changed
    index.write(made.take_changes())
    assert set(index.blocks) == {*hashes([1, 2]), *hashes([3, 4]), *hashes([99, 100, 101, 102])}
    assert not made.has_changes


def test_what_comes_between_two_changes_is_written_though_all_began_anew_meanwhile() -> None:
    made, index = prefixes(), Index()
    made.report(cached(1, range(4 * BLOCKS_AT_ONCE)), 10)
    changes = made.take_changes()
    index.write([next(changes)])
    made.clear()
    made.report(cached(2, [7, 8]), 11)
    index.write(changes)
    assert set(index.blocks) == set(hashes([7, 8]))
    assert not made.has_changes


def test_after_the_engine_died_nothing_is_left_in_the_index() -> None:
    made, index = prefixes(), Index()
    assert not made.has_changes
    made.report(cached(1, [1, 2, 3, 4]), 10)
    index.write(made.take_changes())
    made.clear()
    assert made.has_changes
    assert index.write(made.take_changes())
    assert index.blocks == {}
    assert not made.has_changes


def test_many_blocks_are_written_in_several_changes_that_build_upon_each_other() -> None:
    made, index = prefixes(), Index()
    made.report(cached(1, range(5 * BLOCKS_AT_ONCE)), 10)
    changes = list(made.take_changes())
    assert len(changes) == 3
    assert [change.version for change in changes] == [None, 1, 2]
    assert index.write(changes)
    assert len(index.blocks) == len(made) == 5 * BLOCKS_AT_ONCE // 2


def test_an_index_that_lost_its_part_gets_it_back() -> None:
    made, index = prefixes(), Index()
    made.report(cached(1, [1, 2, 3, 4]), 10)
    index.write(made.take_changes())
    empty = Index()
    assert not empty.write([made.renewal()])
    made.begin_anew()
    assert empty.write(made.take_changes())
    assert empty.blocks == index.blocks


def test_what_comes_while_changes_are_written_is_not_lost() -> None:
    made, index = prefixes(), Index()
    made.report(cached(1, range(4 * BLOCKS_AT_ONCE)), 10)
    changes = made.take_changes()
    assert index.write([next(changes)])
    made.report(cached(1, []), 11)
    made.report(cached(2, [7, 8]), 11)
    assert index.write(changes)
    assert made.has_changes
    assert index.write(made.take_changes())
    assert set(index.blocks) == set(hashes([7, 8]))


def test_of_a_state_that_serves_as_a_whole_its_end_alone_is_usable() -> None:
    made, index = prefixes(), Index()
    made.report(cached(1, [1, 2, 3, 4, 5, 6, 7], is_indivisible=True), 10)
    index.write(made.take_changes())
    first, second, third = hashes([1, 2, 3, 4, 5, 6])
    assert index.usable == {first: 0, second: 0, third: 3}
    made.report(cached(2, [1, 2, 3, 4, 9, 9], is_indivisible=True), 11)
    made.report(cached(3, [1, 2, 3, 4], is_indivisible=True), 11)
    assert {each for change in made.take_changes() for each in (b.hash for b in change.added)} >= {second}
    made.begin_anew()
    index.write(made.take_changes())
    assert [index.usable[each] for each in (first, second, third)] == [0, 2, 3]
    assert index.usable[hashes([1, 2, 3, 4, 9, 9])[-1]] == 3


def test_what_lies_between_two_ends_is_told_again_when_the_first_goes() -> None:
    made, index = prefixes(), Index()
    made.report(cached(1, range(10), is_indivisible=True), 10)
    made.report(cached(2, range(4), is_indivisible=True), 10)
    index.write(made.take_changes())
    chain = hashes(range(10))
    assert [index.usable[each] for each in chain] == [0, 2, 2, 2, 5]
    made.report(cached(2, []), 11)
    index.write(made.take_changes())
    assert [index.usable[each] for each in chain] == [0, 0, 0, 0, 5]


EVENT = st.tuples(
    st.integers(0, 3),
    st.lists(st.integers(0, 1), max_size=12),
    st.sampled_from([DEVICE, HOST]),
    st.booleans(),
)
STEP = st.one_of(EVENT, st.sampled_from(["write", "lost answer", "server emptied", "engine died"]))


@given(long_lists(STEP, max_size=40))
def test_the_index_comes_to_hold_what_is_cached_whatever_happens(steps: list[object]) -> None:
    made, index = prefixes(), Index()
    entries: dict[int, tuple[list[bytes], Tier, bool]] = {}
    for step in steps:
        match step:
            case (int(entry), list(tokens), int(tier), bool(is_whole)):
                where = DEVICE if tier == DEVICE else HOST
                made.report(cached(entry, tokens, where, is_indivisible=is_whole), 10)
                entries.pop(entry, None)
                if len(tokens) >= 2:
                    entries[entry] = hashes(tokens), Tier.DEVICE if tier == DEVICE else Tier.HOST, is_whole
            case "write":
                if not index.write(made.take_changes()):
                    made.begin_anew()
            case "lost answer":
                index.write(made.take_changes())
                made.begin_anew()
            case "server emptied":
                index = Index()
            case "engine died":
                made.clear()
                entries.clear()
    if made.is_written and not index.write([made.renewal()]):
        made.begin_anew()
    assert index.write(made.take_changes() if made.has_changes else [])
    check(index, entries)
    assert len(made) == len(index.blocks)


def check(index: Index, entries: dict[int, tuple[list[bytes], Tier, bool]]) -> None:
    """The index holds what the cached sequences have, and with what of it a request can begin."""
    expected: dict[bytes, Tier] = {}
    begins: set[bytes] = set()
    for held, tier, is_whole in entries.values():
        begins.update(held[-1:] if is_whole else held)
        for each in held:
            expected[each] = min(tier, expected.get(each, tier))
    assert {each: tier for each, (tier, _) in index.blocks.items()} == expected
    assert index.usable.keys() == expected.keys()
    for held, _, _ in entries.values():
        for depth, each in enumerate(held, 1):
            usable = [n for n, above in enumerate(held[:depth], 1) if above in begins]
            assert index.usable[each] == max(usable, default=0)
