"""Costs of decisions: processor time of each call of a core."""

from __future__ import annotations

import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeVar

from benchmarks.load.stats import percentile

T = TypeVar("T")


class Meter:
    """Seconds of each call, by scheduler and by what it was about."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], array[float]] = defaultdict(lambda: array("d"))

    def time(self, scheduler: str, what: str, call: Callable[[], T]) -> T:
        began_s = time.thread_time()
        result = call()
        self._seconds[scheduler, what].append(time.thread_time() - began_s)
        return result

    @property
    def schedulers(self) -> list[str]:
        return sorted({scheduler for scheduler, _ in self._seconds})

    @property
    def kinds(self) -> list[str]:
        return sorted({what for _, what in self._seconds})

    def of(self, *, scheduler: str = "", what: str = "") -> Costs:
        """Return the costs of one scheduler, of one kind; of all where none is named."""
        return Costs(
            s
            for (one, kind), seconds in self._seconds.items()
            if scheduler in ("", one) and what in ("", kind)
            for s in seconds
        )


class Costs:
    """Some calls, in seconds."""

    def __init__(self, seconds: Iterable[float]) -> None:
        self._ordered = sorted(seconds)

    def __len__(self) -> int:
        return len(self._ordered)

    @property
    def total_s(self) -> float:
        return sum(self._ordered)

    def quantile_us(self, quantile: float) -> float:
        """In microseconds; 0 without calls."""
        return 1e6 * percentile(self._ordered, quantile) if self._ordered else 0.0
