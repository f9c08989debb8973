"""Times of steps without prompts, by their rows (pure).

That is no straight line. llama.cpp computes a row alone in another way than several, and several in tiles of
2 or 4 rows. So each number of rows has a time of its own: measured at the start for some of them, between
those interpolated. Each step since then moves the time of its own rows, and all others somewhat less: a
deeper context or a busy machine makes every step longer.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

# A step moves the time of its own rows by the first part of the difference, and all others by the second.
_OWN_PART = 0.2
_COMMON_PART = 0.15
# A step that took more than this many times as long as expected was disturbed.
_OUTLIER = 1.5


class RowTimes:
    """Seconds of a step by its rows.

    Args:
        most: rows of any step that is asked for.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # By rows, in seconds at the start; times `_scale` since.
        self._curve: list[float] = []
        self._scale = 1.0

    @property
    def is_known(self) -> bool:
        return bool(self._curve)

    def know(self, measured: Mapping[int, float]) -> None:
        """Begin with the seconds that steps of some numbers of rows take; with none, nothing is known.

        Beyond the largest number a row costs what it did up to there.
        """
        if not measured:
            return
        sizes = sorted(measured)
        seconds = [measured[n] for n in sizes]
        first, last = sizes[0], sizes[-1]
        slope = max(seconds[-1] - seconds[0], 0.0) / (last - first) if last > first else 0.0
        sizes.append(self._most + last)
        seconds.append(seconds[-1] + slope * self._most)
        self._curve = np.interp(np.arange(self._most + 1), sizes, seconds).tolist()
        self._scale = 1.0

    def seconds_of(self, rows: int) -> float:
        """Seconds of a step of this many rows, counted as at most `most`."""
        return self._curve[min(rows, self._most)] * self._scale

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a step."""
        if not self._curve or rows > self._most:
            return
        expected = self._curve[rows] * self._scale
        if expected <= 0.0:
            return
        off = min(max(seconds / expected, 1 / _OUTLIER), _OUTLIER) - 1.0
        common = 1.0 + _COMMON_PART * off
        self._scale *= common
        self._curve[rows] *= (1.0 + _OWN_PART * off) / common
