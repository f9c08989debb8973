"""Which scheduler is to lead which partition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.contract.partitions import divide
from inferflux.scheduler.core.lease.ownership import Handover, Members, owner_of

NAMES = st.sets(st.text("abcdefgh-0123456789", min_size=1, max_size=12), min_size=1, max_size=8)
INTERVAL_S = 0.5


def owners(names: set[str], count: int = 64) -> dict[str, str]:
    return {each.name: owner_of(each.name, tuple(sorted(names))) for each in divide(count)}


@given(NAMES)
def test_every_partition_has_one_owner_among_those_that_live(names: set[str]) -> None:
    assert set(owners(names).values()) <= names


@given(NAMES, st.text("xyz", min_size=1))
def test_one_that_joins_takes_partitions_and_moves_no_others(names: set[str], joined: str) -> None:
    before, after = owners(names), owners(names | {joined})
    assert all(after[partition] in (before[partition], joined) for partition in before)
    assert owners((names | {joined}) - {joined}) == before


def test_partitions_are_spread() -> None:
    counts = [list(owners({"s0", "s1", "s2", "s3"}).values()).count(f"s{i}") for i in range(4)]
    assert min(counts) >= 8


def test_without_a_scheduler_there_is_no_owner() -> None:
    assert owner_of("all", ()) == ""


def members(name: str = "a") -> Members:
    return Members(name, INTERVAL_S, 0.0)


def test_one_is_sure_of_nothing_before_it_has_listened() -> None:
    alone = members()
    assert not alone.is_owner("0-of-2", 0.9)
    assert not alone.has_better_owner("0-of-2", 0.9)
    assert alone.is_owner("0-of-2", 1.0)


def test_no_more_schedulers_are_known_than_partitions_could_need_and_those_that_are_stay_so() -> None:
    one = members()
    for i in range(1000):
        one.on_alive(f"s{i}", 1.0)
    one.on_alive("s0", 2.0)
    assert len(one.live(2.0)) == 257
    assert "s0" in one.live(2.6)


def test_who_is_silent_for_three_intervals_is_gone_and_who_leaves_is_so_at_once() -> None:
    one = members()
    one.on_alive("b", 1.0)
    one.on_alive("c", 1.0)
    assert one.live(2.5) == ("a", "b", "c")
    one.on_left("c")
    assert one.live(2.5) == ("a", "b")
    assert one.live(2.6) == ("a",)


def test_silence_during_an_outage_says_nothing() -> None:
    one = members()
    one.on_alive("b", 1.0)
    one.on_reconnect(1.4)
    assert one.live(2.8) == ("a", "b")
    assert not any(one.is_owner(each.name, 2.3) for each in divide(8))
    assert sum(one.is_owner(each.name, 2.4) for each in divide(8)) < 8


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=30))
def test_schedulers_that_have_received_the_same_agree(events: list[tuple[str, bool]]) -> None:
    seen = {name: members(name) for name in "abcd"}
    now = 1.0
    for name, lives in events:
        now += 0.01
        for each in seen.values():
            if lives:
                each.on_alive(name, now)
            else:
                each.on_left(name)
    alive = set(seen["a"].live(now)) & set(seen["b"].live(now)) | {"a", "b"}
    for each in (seen["a"], seen["b"]):
        for name in alive:
            each.on_alive(name, now)
        for gone in set("abcd") - alive:
            each.on_left(gone)
    for partition in divide(16):
        a, b = (seen[name].is_owner(partition.name, now) for name in "ab")
        assert not (a and b)


def test_a_partition_is_given_back_once_another_one_has_been_its_owner_for_two_leases() -> None:
    handover = Handover(lease_s=1.5)
    assert not handover.is_due("0-of-2", 10.0, is_outweighed=True)
    assert not handover.is_due("0-of-2", 12.9, is_outweighed=True)
    assert not handover.is_due("1-of-2", 13.0, is_outweighed=True)
    assert handover.is_due("0-of-2", 13.0, is_outweighed=True)
    assert not handover.is_due("0-of-2", 13.5, is_outweighed=True)


def test_one_that_comes_and_goes_moves_nothing() -> None:
    handover = Handover(lease_s=1.5)
    for now in (10.0, 12.0, 14.0, 16.0):
        assert not handover.is_due("0-of-2", now, is_outweighed=True)
        assert not handover.is_due("0-of-2", now + 1.0, is_outweighed=False)
