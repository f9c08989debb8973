"""Things that fall due (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")


class Timers(Generic[T]):
    """Items by the time they fall due, in seconds. What is no longer wanted is for the receiver to tell."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due_s: float, item: T) -> None:
        self._count += 1
        heappush(self._heap, (due_s, self._count, item))

    def keep(self, is_wanted: Callable[[T], bool]) -> None:
        """Let go of the others before they fall due."""
        self._heap = [entry for entry in self._heap if is_wanted(entry[2])]
        heapify(self._heap)

    def due(self, now: float) -> Iterator[T]:
        """Take out what is due, in order."""
        while self._heap and self._heap[0][0] <= now:
            yield heappop(self._heap)[2]
