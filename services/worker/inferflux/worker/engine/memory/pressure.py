"""Memory pressure: the sequences that leave the KV cache so that the next step fits, and those that may be
loaded.

There is one order of eviction, for cells and for sequence ids. Cached prefixes are first; here their cells
and ids count as free. Then come parked sequences, the least urgent first; then running ones that are less
urgent than the one in need, the least urgent first. The most urgent sequence always makes progress. It fits
the empty cache by itself, so it ends, and the next is the most urgent.

A decoding sequence that finds no cell sits the step out. A prompt takes what is free.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

# A sequence is loaded only if all others can then go on for this many steps, ...
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
# Cells that are free once this one has left as well, after those that were asked for before.
Release = Callable[[H], int]


def own_cells(holder: Holder) -> int:
    """Cells that evicting a sequence frees if it shares none."""
    return holder.cells


@dataclass(frozen=True, slots=True)
class Fit(Generic[H]):
    """Tokens per sequence that fit once `victims` have left the cache."""

    grants: list[tuple[H, int]]
    victims: list[H]


class _Room(Generic[H]):
    """Free cells and sequence ids, and who can be evicted for more."""

    def __init__(
        self,
        running: Iterable[H],
        parked: Iterable[H],
        release: Release[H],
        *,
        free: int,
        free_seq_ids: int = 0,
    ) -> None:
        self._release = release
        self.free = free
        self.free_seq_ids = free_seq_ids
        self.victims: list[H] = []
        self._parked = sorted((h for h in parked if h.cells), key=lambda h: h.order)
        self._running = sorted((h for h in running if h.cells), key=lambda h: h.order)

    def make(self, cells: int, order: tuple[float, int], *, seq_ids: int = 0) -> None:
        """Evict until `cells` and `seq_ids` are free, as far as that goes for a sequence of this `order`."""
        while self._lacks(cells, seq_ids) and self._parked:
            self._evict(self._parked.pop())
        while self._lacks(cells, seq_ids) and self._running and self._running[-1].order > order:
            self._evict(self._running.pop())

    def _lacks(self, cells: int, seq_ids: int) -> bool:
        return self.free < cells or self.free_seq_ids < seq_ids

    def within_reach(self, order: tuple[float, int]) -> int:
        """Most cells that `make` can make free. Nothing can be made free afterwards."""
        less_urgent = [h for h in self._running if h.order > order]
        return self.free + sum(self._release(h) for h in (*self._parked, *less_urgent))

    def _evict(self, holder: H) -> None:
        self.victims.append(holder)
        self.free += self._release(holder)
        self.free_seq_ids += 1


def fit_step(
    wanted: Mapping[H, int],
    running: Iterable[H],
    parked: Iterable[H],
    free: int,
    release: Release[H] = own_cells,
) -> Fit[H]:
    """Give `free` cells out for one step, most urgent first.

    Args:
        wanted: tokens of those that the step is for.
        running: in the cache, or about to fill their first cells; those that the step is for among them.
        parked: in the cache, waiting to resume.
        free: cells that no request fills.
        release: what evicting one after the other makes free.
    """
    room = _Room(running, parked, release, free=free)
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


def can_load(
    candidate: H,
    running: Collection[H],
    others_waiting: Iterable[H],
    parked: Iterable[H],
    free: int,
    cells: int,
    release: Release[H] = own_cells,
) -> bool:
    """True if `candidate` should be loaded now: it is not in the cache, or not any more.

    It may when all its tokens fit beside those of every more urgent sequence, with some steps of headroom.
    So it is not evicted again at once. The most urgent sequence always may.

    Args:
        running: those that run and are in the cache.
        others_waiting: those that run and wait to be loaded.
        parked: in the cache, waiting to resume.
        free: cells that no request fills. cells: of the whole cache.
        release: what evicting one after the other makes free.
    """
    ahead = [h for h in running if h.order < candidate.order]
    if not ahead and all(h.order >= candidate.order for h in others_waiting):
        return True
    headroom = min(_HEADROOM_STEPS * (len(ahead) + 1), cells // _HEADROOM_PART)
    wanted = candidate.n_tokens + sum(h.n_pending for h in ahead) + headroom
    return wanted <= _Room(running, parked, release, free=free).within_reach(candidate.order)


def make_room(
    cells: int,
    order: tuple[float, int],
    running: Iterable[H],
    parked: Iterable[H],
    *,
    free: int,
    free_seq_ids: int,
    release: Release[H] = own_cells,
) -> list[H]:
    """Return the sequences that leave so that one of this `order` finds `cells` and a sequence id free."""
    room = _Room(running, parked, release, free=free, free_seq_ids=free_seq_ids)
    room.make(cells, order, seq_ids=1)
    return room.victims
