"""Whether the engine makes progress (pure)."""

from __future__ import annotations


class Watchdog:
    """Notices that an engine should make steps and makes none.

    It counts calls, not seconds of a clock: while the worker itself stands still, it reads no reports, and
    the engine is not to blame.

    Args:
        limit_s: longest time without a step while requests run, in seconds; 0 for no limit.
        interval_s: between two calls of `is_stuck`, in seconds.
    """

    def __init__(self, limit_s: float, interval_s: float) -> None:
        self._limit_s = limit_s
        self._interval_s = interval_s
        self._silent_s = 0.0

    def progressed(self) -> None:
        """The engine has reported a step."""
        self._silent_s = 0.0

    def is_stuck(self, *, has_running: bool) -> bool:
        """Whether it has made no step for too long. To be called every `interval_s`."""
        if not has_running:
            self._silent_s = 0.0
            return False
        self._silent_s += self._interval_s
        return 0 < self._limit_s < self._silent_s
