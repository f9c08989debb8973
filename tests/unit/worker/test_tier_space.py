"""A tier of limited size keeps what is worth most, and never more than it may."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pytest
from harness.long_lists import long_lists
from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.engine.tiers.space import Eviction, Space

ORDERS = st.none() | st.integers(0, 5).map(float)


@dataclass(eq=False)
class State:
    n_bytes: int
    order: tuple[float, int] | None
    last_used: int

    @property
    def worth(self) -> tuple[float, ...]:
        """Lower leaves first."""
        if self.order is None:
            return (0.0, self.last_used)
        return (1.0, -self.order[0], -self.order[1])


@given(st.lists(st.tuples(ORDERS, st.integers(1, 60), st.booleans()), max_size=25), st.integers(0, 100))
def test_what_leaves_is_worth_the_least_and_no_more_leaves_than_has_to(
    arrivals: list[tuple[float | None, int, bool]], limit: int
) -> None:
    space: Space[State] = Space(limit)
    held: list[State] = []
    for i, (urgency, n_bytes, is_use) in enumerate(arrivals):
        if is_use and held:
            held[i % len(held)].last_used = i
            space.use(held[i % len(held)])
            continue
        state = State(n_bytes, None if urgency is None else (urgency, i), i)
        may_leave = [
            h for h in held if h.order is None or (state.order is not None and h.order > state.order)
        ]
        may_leave.sort(key=lambda h: h.worth)
        losers = space.losers(n_bytes, state.order)
        free = limit - sum(h.n_bytes for h in held)
        if losers is None:
            assert free + sum(h.n_bytes for h in may_leave) < n_bytes
            continue
        assert losers == may_leave[: len(losers)]
        assert free + sum(h.n_bytes for h in losers) >= n_bytes
        assert not losers or free + sum(h.n_bytes for h in losers[:-1]) < n_bytes
        for loser in losers:
            space.release(loser)
            held.remove(loser)
        space.hold(state, n_bytes, state.order)
        held.append(state)
        assert space.used == sum(h.n_bytes for h in held) <= limit
        assert len(space) == len(held)


class Clock:
    """A hand that goes round, one state at a time."""

    def __init__(self) -> None:
        self.ring: deque[tuple[int, int]] = deque()  # key, bytes
        self.lives: dict[int, int] = {}

    def evict(self, n_bytes: int, limit: int) -> list[int]:
        gone: list[int] = []
        while sum(n for _, n in self.ring) + n_bytes > limit:
            key, n = self.ring.popleft()
            if self.lives[key] == 0:
                gone.append(key)
            else:
                self.lives[key] -= 1
                self.ring.append((key, n))
        return gone


@given(long_lists(st.tuples(st.booleans(), st.integers(1, 30), st.integers(0, 9)), max_size=60))
def test_by_clock_a_hand_takes_a_life_of_each_that_it_passes(
    steps: list[tuple[bool, int, int]],
) -> None:
    limit = 60
    space: Space[int] = Space(limit, Eviction.CLOCK)
    plain = Clock()
    for i, (is_use, n_bytes, which) in enumerate(steps):
        if is_use and plain.ring:
            key, _ = plain.ring[which % len(plain.ring)]
            plain.lives[key] = min(plain.lives[key] + 1, 3)
            space.use(key)
            continue
        losers = space.losers(n_bytes)
        assert losers is not None
        assert losers == plain.evict(n_bytes, limit)
        space.evict(losers)
        space.hold(i, n_bytes)
        plain.ring.append((i, n_bytes))
        plain.lives[i] = 0
        assert space.used == sum(n for _, n in plain.ring) <= limit


def test_by_clock_preempted_ones_stay_and_leave_by_urgency() -> None:
    space: Space[str] = Space(4, Eviction.CLOCK)
    space.hold("urgent", 1, (1.0, 1))
    space.hold("popular", 1)
    space.hold("other", 1, (2.0, 1))
    space.hold("cold", 1)
    space.use("popular")
    assert space.losers(3) is None
    assert space.losers(1) == ["cold"]
    losers = space.losers(3, (0.0, 1))
    assert losers == ["cold", "popular", "other"]
    space.evict(losers)
    assert (len(space), space.used) == (1, 1)


def test_more_than_is_free_cannot_be_held() -> None:
    space: Space[str] = Space(10)
    with pytest.raises(ValueError, match="11 bytes wanted, 10 of 10 free"):
        space.hold("a", 11)
    assert space.used == 0


def test_what_is_held_again_counts_once() -> None:
    space: Space[str] = Space(10)
    space.hold("a", 10, (1.0, 1))
    assert space.losers(10) is None
    space.hold("a", 8)
    assert (space.used, space.losers(10)) == (8, ["a"])
