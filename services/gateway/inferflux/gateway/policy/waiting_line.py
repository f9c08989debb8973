"""A bounded line whose most urgent goes first. Pure: times are passed in."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from inferflux.common.contract.requests.priority import AGING_S

T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class Standing(Generic[T]):
    """A place in the line. Of two, the smaller one waits longer."""

    urgency: float
    arrival: int
    waiter: T = field(compare=False)


class WaitingLine(Generic[T]):
    """Holds those that wait, by priority, higher first; of one priority, first come is first served.

    All age alike: one of priority 0 is overtaken by one of priority 4 only if that came within 8 s after it.

    Args:
        limit: places.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # The first in order is the last here.
        self._standings: list[Standing[T]] = []
        self._n_arrivals = 0

    def __len__(self) -> int:
        return len(self._standings)

    def join(self, waiter: T, *, priority: int, now: float) -> tuple[Standing[T], T | None]:
        """Take a place.

        Args:
            now: in seconds of any clock.

        Returns:
            The place, and who loses one for it: the last in order, which may be who has come.
        """
        self._n_arrivals += 1
        standing = Standing(priority * AGING_S - now, -self._n_arrivals, waiter)
        insort(self._standings, standing)
        pushed_out = self._standings.pop(0).waiter if len(self._standings) > self._limit else None
        return standing, pushed_out

    def pop(self) -> T | None:
        """Take the first in order out, if there is one."""
        return self._standings.pop().waiter if self._standings else None

    def leave(self, standing: Standing[T]) -> None:
        """Give a place up; one that is given up already stays so."""
        at = bisect_left(self._standings, standing)
        if at < len(self._standings) and self._standings[at] is standing:
            del self._standings[at]
