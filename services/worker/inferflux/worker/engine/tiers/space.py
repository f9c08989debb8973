"""What a tier of so many bytes keeps (pure).

Preempted sequences come before cold prefixes: a request waits for them. Among preempted ones urgency decides,
among cold ones the last use. Nothing leaves for what would not find room anyway.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Order = tuple[float, int]

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Held:
    n_bytes: int
    last_used: int
    # Of the preempted sequence it belongs to; lower is more urgent. None: it is cold.
    order: Order | None


class Space(Generic[K]):
    """Bytes per kept state.

    Args:
        limit: most bytes in all.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
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
        """What belongs to no preempted sequence, the last used first."""
        found = [(k, h) for k, h in self._held.items() if h.order is None]
        return [k for k, _ in sorted(found, key=lambda item: -item[1].last_used)]

    def losers(self, n_bytes: int, order: Order | None = None) -> list[K] | None:
        """What has to leave for `n_bytes` more: cold ones, the longest unused first, then preempted ones that
        are less urgent than `order`, the least urgent first. None when even that would not do."""
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
        """What may leave for a state of this order, the least valuable first."""
        cold = [(k, h) for k, h in self._held.items() if h.order is None]
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
        self._held[key] = _Held(n_bytes, self._uses, order)
        self.used += n_bytes

    def use(self, key: K) -> None:
        """Count `key` as used now; nothing if it is not held."""
        held = self._held.get(key)
        if held is not None:
            self._uses += 1
            held.last_used = self._uses

    def release(self, key: K) -> None:
        """Count what `key` takes as free; nothing if it takes nothing."""
        held = self._held.pop(key, None)
        if held is not None:
            self.used -= held.n_bytes
