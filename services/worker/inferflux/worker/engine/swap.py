"""Which swapped sequences keep their state in host memory.

The memory is bounded. Where it is full, the least urgent lose their state, and are computed again when
their turn comes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar


class Swapped(Hashable, Protocol):
    @property
    def order(self) -> tuple[float, int]:
        """Lower is more urgent; no two are equal."""


S = TypeVar("S", bound=Swapped)


class SwapSpace(Generic[S]):
    """Bytes of host memory per swapped sequence.

    Args:
        limit: most bytes in all.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._held: dict[S, int] = {}

    def losers(self, sequence: S, n_bytes: int) -> list[S] | None:
        """Who has to give its bytes up for `n_bytes` of `sequence`: less urgent ones, least urgent first.
        None when even that would not do."""
        losers: list[S] = []
        free = self.limit - self.used
        by_urgency = sorted(self._held, key=lambda held: held.order)
        while free < n_bytes:
            if not by_urgency or by_urgency[-1].order <= sequence.order:
                return None
            losers.append(by_urgency.pop())
            free += self._held[losers[-1]]
        return losers

    def hold(self, sequence: S, n_bytes: int) -> None:
        """Count `n_bytes` for `sequence`.

        Raises:
            ValueError: that is more than is free.
        """
        if self.used + n_bytes > self.limit:
            raise ValueError(f"{n_bytes} bytes wanted, {self.limit - self.used} of {self.limit} free")
        self._held[sequence] = n_bytes
        self.used += n_bytes

    def release(self, sequence: S) -> None:
        """Count what `sequence` takes as free; nothing if it takes nothing."""
        self.used -= self._held.pop(sequence, 0)
