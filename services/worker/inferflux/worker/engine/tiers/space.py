"""Space of a tier of limited size: the states that it keeps, and those that leave (pure).

Preempted sequences come before cold prefixes: a request waits for them. Among preempted ones urgency decides,
among cold ones their use. Nothing leaves for what would not find room anyway.

`Eviction.LRU` has the longest unused leave first. With `Eviction.CLOCK` each has a few lives, one for each
time it was used. A hand goes round and takes one life of each that it passes; those without leave. So what is
used again and again stays longer than what was used once, lately.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

Order = tuple[float, int]
# Of a cold prefix that was used often. More would make it stay for long after its last use.
_MOST_LIVES = 3


class Eviction(Enum):
    """Order in which cold prefixes leave."""

    LRU = "lru"
    CLOCK = "clock"


K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Held:
    n_bytes: int
    last_used: int
    lives: int
    # Of the preempted sequence it belongs to; lower is more urgent. None: it is cold.
    order: Order | None


class Space(Generic[K]):
    """Bytes per kept state.

    Args:
        limit: most bytes in all.
        eviction: of cold prefixes.
    """

    def __init__(self, limit: int, eviction: Eviction = Eviction.LRU) -> None:
        self.limit = limit
        self._eviction = eviction
        self.used = 0
        # Of cold ones, in the order in which the hand meets them.
        self._held: dict[K, _Held] = {}
        self._uses = 0

    def __len__(self) -> int:
        return len(self._held)

    def held(self) -> list[K]:
        """All that is held."""
        return list(self._held)

    def __contains__(self, key: K) -> bool:
        return key in self._held

    def cold(self) -> list[K]:
        """Keys that belong to no preempted sequence, the last used first."""
        found = [(k, h) for k, h in self._held.items() if h.order is None]
        return [k for k, _ in sorted(found, key=lambda item: -item[1].last_used)]

    def losers(self, n_bytes: int, order: Order | None = None) -> list[K] | None:
        """Return the keys that leave for `n_bytes` more: cold ones, the longest unused first, then preempted
        ones that are less urgent than `order`, the least urgent first. None when even that would not do."""
        free = self.limit - self.used
        if free >= n_bytes:
            return []
        losers: list[K] = []
        for key, held in self._by_worth(order):
            losers.append(key)
            free += held.n_bytes
            if free >= n_bytes:
                return losers
        return None

    def _by_worth(self, order: Order | None) -> list[tuple[K, _Held]]:
        """Return the entries that may leave for a state of this order, the least valuable first."""
        cold = [(k, h) for k, h in self._held.items() if h.order is None]
        if self._eviction is Eviction.CLOCK:
            cold.sort(key=lambda item: item[1].lives)
        else:
            cold.sort(key=lambda item: item[1].last_used)
        if order is None:
            return cold
        preempted = [
            (h.order, k, h) for k, h in self._held.items() if h.order is not None and h.order > order
        ]
        preempted.sort(key=lambda item: item[0], reverse=True)
        return cold + [(k, h) for _, k, h in preempted]

    def hold(self, key: K, n_bytes: int, order: Order | None = None) -> None:
        """Count `n_bytes` for `key`, used now, in place of what it took.

        Raises:
            ValueError: that is more than is free.
        """
        self.release(key)
        if self.used + n_bytes > self.limit:
            raise ValueError(f"{n_bytes} bytes wanted, {self.limit - self.used} of {self.limit} free")
        self._uses += 1
        self._held[key] = _Held(n_bytes, self._uses, 0, order)
        self.used += n_bytes

    def use(self, key: K) -> None:
        """Count `key` as used now; nothing if it is not held."""
        held = self._held.get(key)
        if held is not None:
            self._uses += 1
            held.last_used = self._uses
            held.lives = min(held.lives + 1, _MOST_LIVES)

    def evict(self, losers: list[K]) -> None:
        """Free what `losers` take, which `losers()` gave."""
        cold = [key for key in losers if self._held[key].order is None]
        if cold and self._eviction is Eviction.CLOCK:
            self._turn_to(cold[-1])
        for key in losers:
            self.release(key)

    def _turn_to(self, last: K) -> None:
        """Turn the hand until `last` leaves."""
        rounds = self._held[last].lives
        is_passed = True
        for key, held in list(self._held.items()):
            if held.order is not None:
                continue
            held.lives = max(held.lives - rounds - is_passed, 0)
            if is_passed:
                self._held[key] = self._held.pop(key)
            is_passed &= key is not last

    def release(self, key: K) -> None:
        """Count what `key` takes as free; nothing if it takes nothing."""
        held = self._held.pop(key, None)
        if held is not None:
            self.used -= held.n_bytes
