"""Delay before a process that died is started again."""

from __future__ import annotations

FIRST_S = 0.5
LONGEST_S = 15.0
# A run this long was a good one: the next death counts as the first.
STABLE_S = 30.0


class Backoff:
    """Doubles from FIRST_S to LONGEST_S while runs stay short."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def after(self, uptime_s: float) -> float:
        """Seconds to wait after a run of `uptime_s` seconds."""
        delay_s = FIRST_S if uptime_s >= STABLE_S else self._next_s
        self._next_s = min(delay_s * 2, LONGEST_S)
        return delay_s
