"""Events that are to happen in simulated time, in order."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Events:
    """Calls by the time they fall due; those of one time in the order in which they were added.

    Args:
        now: when it begins, in seconds.
    """

    def __init__(self, now: float) -> None:
        self.now = now
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, when_s: float, do: Callable[..., None], *arguments: Any) -> None:
        """Do something at a time; at once if that is past."""
        self._count += 1
        heappush(self._heap, (max(when_s, self.now), self._count, do, arguments))

    def after(self, delay_s: float, do: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + delay_s, do, *arguments)

    def step(self) -> bool:
        """Go on to what comes next, and do it; False if nothing comes."""
        if not self._heap:
            return False
        self.now, _, do, arguments = heappop(self._heap)
        do(*arguments)
        return True
