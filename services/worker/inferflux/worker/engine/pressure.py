"""Who has to leave the KV cache so that the next step fits, and who may come in.

Everybody is ordered by urgency. Room is made at the cost of those that wait for their turn first, then
of those that run and are less urgent than the one in need; the least urgent goes first. So the most
urgent of all always gets on, and since it fits the empty cache by itself, it ends some day and the next
is the most urgent.

A decoding sequence that finds no cell sits the step out. A prompt takes what is free.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

# A sequence comes in only if everyone can then go on for so many steps, ...
_HEADROOM_STEPS = 16
# ... but no more than this part of the cache is kept free for that.
_HEADROOM_PART = 8


class Holder(Hashable, Protocol):
    """A sequence as far as memory goes."""

    @property
    def order(self) -> tuple[float, int]:
        """Lower is more urgent; no two are equal."""

    @property
    def cells(self) -> int:
        """KV cells it fills."""

    @property
    def n_tokens(self) -> int:
        """Cells it fills once all its tokens are computed."""

    @property
    def n_pending(self) -> int:
        """Tokens that are still to be computed."""


H = TypeVar("H", bound=Holder)


@dataclass(frozen=True, slots=True)
class Fit(Generic[H]):
    """What fits: tokens per sequence, once `victims` have left the cache."""

    grants: list[tuple[H, int]]
    victims: list[H]


class _Room(Generic[H]):
    """Free cells, and who can be made to give theirs."""

    def __init__(self, running: Iterable[H], parked: Iterable[H], free: int) -> None:
        self.free = free
        self.victims: list[H] = []
        self._parked = sorted((h for h in parked if h.cells), key=lambda h: h.order)
        self._running = sorted((h for h in running if h.cells), key=lambda h: h.order)

    def make(self, cells: int, order: tuple[float, int], *, of_running: bool = True) -> None:
        """Make `cells` free at the cost of who waits and, if wanted, of who is less urgent than `order`; as
        far as that goes."""
        while self.free < cells and self._parked:
            self._evict(self._parked.pop())
        while of_running and self.free < cells and self._running and self._running[-1].order > order:
            self._evict(self._running.pop())

    def within_reach(self, order: tuple[float, int]) -> int:
        """Most cells that `make` can make free."""
        less_urgent = sum(h.cells for h in self._running if h.order > order)
        return self.free + sum(h.cells for h in self._parked) + less_urgent

    def _evict(self, holder: H) -> None:
        self.victims.append(holder)
        self.free += holder.cells


def fit_step(wanted: Mapping[H, int], running: Iterable[H], parked: Iterable[H], free: int) -> Fit[H]:
    """Share `free` cells out for one step, most urgent first.

    Args:
        wanted: tokens of those that the step is for.
        running: in the cache, or about to fill their first cells; those that the step is for among them.
        parked: in the cache, waiting for their turn.
        free: cells nobody fills.
    """
    room = _Room(running, parked, free)
    grants: list[tuple[H, int]] = []
    gone: set[H] = set()
    for holder in sorted(wanted, key=lambda h: h.order):
        if holder in gone:
            continue
        room.make(wanted[holder], holder.order)
        gone.update(room.victims)
        granted = min(wanted[holder], room.free)
        if granted:
            room.free -= granted
            grants.append((holder, granted))
    return Fit(grants, room.victims)


def may_enter(
    candidate: H,
    running: Collection[H],
    others_waiting: Iterable[H],
    parked: Iterable[H],
    free: int,
    cells: int,
) -> bool:
    """Whether `candidate` should come into the cache now, where it was not or is not any more.

    It may when all its tokens fit beside those of everyone more urgent, with some steps of headroom, so
    that it is not sent out again at once. The most urgent of all always may.

    Args:
        running: those that run and are in the cache.
        others_waiting: those that run and wait to come in.
        parked: in the cache, waiting for their turn.
        free: cells nobody fills. cells: of the whole cache.
    """
    ahead = [h for h in running if h.order < candidate.order]
    if not ahead and all(h.order >= candidate.order for h in others_waiting):
        return True
    headroom = min(_HEADROOM_STEPS * (len(ahead) + 1), cells // _HEADROOM_PART)
    wanted = candidate.n_tokens + sum(h.n_pending for h in ahead) + headroom
    return wanted <= _Room(running, parked, free).within_reach(candidate.order)


def make_room(
    cells: int, order: tuple[float, int], running: Iterable[H], parked: Iterable[H], free: int
) -> list[H]:
    """Who has to leave so that a sequence of this `order` finds `cells` free."""
    room = _Room(running, parked, free)
    room.make(cells, order)
    return room.victims
