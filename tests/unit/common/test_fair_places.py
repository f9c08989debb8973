"""Who gives way when all places are taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.calls.fair_places import FairPlaces

LIMIT, GRACE_S = 6, 2.0


def taken(owners: str) -> FairPlaces[int]:
    """One place each, of these owners, a second apart."""
    places = FairPlaces[int](grace_s=GRACE_S)
    for number, owner in enumerate(owners):
        places.take(owner, number, float(number))
    return places


def test_the_oldest_of_the_owner_with_most_gives_way_at_once_to_one_with_fewer() -> None:
    victim = taken("baaab").victim("c")
    assert (victim.holder, victim.at) == (1, 1.0)


def test_an_owner_waits_for_the_grace_of_its_own_oldest() -> None:
    victim = taken("abaaa").victim("a")
    assert (victim.holder, victim.at) == (0, 0.0 + GRACE_S)


def test_owners_with_about_as_many_do_not_displace_each_other_within_the_grace() -> None:
    assert taken("aabbb").victim("a").at == 2.0 + GRACE_S
    assert taken("ab").victim("c").at == 0.0 + GRACE_S


def test_a_place_is_given_back_once() -> None:
    places = taken("ab")
    assert places.give_back("a", 0)
    assert not places.give_back("a", 0)
    assert (len(places), places.count("a"), places.count("b")) == (1, 0, 1)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=60))
def test_an_owner_with_less_than_its_share_finds_a_place_at_once(steps: list[tuple[str, bool]]) -> None:
    places = FairPlaces[int](grace_s=GRACE_S)
    owners: dict[int, str] = {}
    for number, (owner, gives_back) in enumerate(steps):
        if gives_back and owners:
            oldest = next(iter(owners))
            assert places.give_back(owners.pop(oldest), oldest)
            continue
        if len(places) >= LIMIT:
            victim = places.victim(owner)
            if places.count(owner) == 0:  # four owners share six places: one has two of them
                assert victim.at <= number
            if victim.at > number:
                continue
            assert places.give_back(owners.pop(victim.holder), victim.holder)
        places.take(owner, number, float(number))
        owners[number] = owner
        assert len(places) == len(owners) <= LIMIT
