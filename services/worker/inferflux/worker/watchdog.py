"""Whether the engine gets on (pure)."""

from __future__ import annotations


class Watchdog:
    """Notices that an engine should make steps and makes none.

    It counts how often it was asked, not seconds of a clock: when the worker itself was held up, the engine
    is not to blame for a silence that nobody listened to.

    Args:
        limit_s: longest silence of an engine with running requests, in seconds; 0 for no limit.
        interval_s: how often `is_stuck` is asked.
    """

    def __init__(self, limit_s: float, interval_s: float) -> None:
        self._limit_s = limit_s
        self._interval_s = interval_s
        self._silent_s = 0.0

    def progressed(self) -> None:
        """The engine has said something."""
        self._silent_s = 0.0

    def is_stuck(self, *, has_running: bool) -> bool:
        """To be asked every `interval_s`: whether it has been silent for too long."""
        if not has_running:
            self._silent_s = 0.0
            return False
        self._silent_s += self._interval_s
        return 0 < self._limit_s < self._silent_s
