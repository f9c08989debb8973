"""Host memory for swapped sequences is bounded, and the least urgent lose theirs first."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.engine.swap import SwapSpace


@dataclass(eq=False)
class Swapped:
    urgency_key: float
    arrival: int = 0

    @property
    def order(self) -> tuple[float, int]:
        return self.urgency_key, self.arrival


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60)), max_size=20), st.integers(0, 100))
def test_never_more_is_held_than_may_be_and_the_most_urgent_keep_theirs(
    arrivals: list[tuple[int, int]], limit: int
) -> None:
    space: SwapSpace[Swapped] = SwapSpace(limit)
    held: dict[Swapped, int] = {}
    for i, (urgency_key, n_bytes) in enumerate(arrivals):
        sequence = Swapped(urgency_key, i)
        losers = space.losers(sequence, n_bytes)
        less_urgent = {h: n for h, n in held.items() if h.order > sequence.order}
        if losers is None:
            assert limit - sum(held.values()) + sum(less_urgent.values()) < n_bytes
            continue
        assert losers == sorted(less_urgent, key=lambda h: h.order, reverse=True)[: len(losers)]
        for loser in losers:
            space.release(loser)
            del held[loser]
        space.hold(sequence, n_bytes)
        held[sequence] = n_bytes
        assert space.used == sum(held.values()) <= limit


def test_nobody_loses_anything_for_what_does_not_fit_anyway() -> None:
    space: SwapSpace[Swapped] = SwapSpace(10)
    space.hold(Swapped(5.0), 10)
    assert space.losers(Swapped(0.0), 11) is None
    assert space.used == 10


def test_more_than_is_free_cannot_be_held() -> None:
    space: SwapSpace[Swapped] = SwapSpace(10)
    with pytest.raises(ValueError, match="11 bytes"):
        space.hold(Swapped(0.0), 11)


def test_without_host_memory_everything_is_computed_again() -> None:
    assert SwapSpace[Swapped](0).losers(Swapped(0.0), 1) is None
