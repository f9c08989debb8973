"""Whether the engine gets on (pure)."""

from __future__ import annotations


class Watchdog:
    """Notices that an engine should make steps and makes none.

    Args:
        limit_s: longest silence of an engine with running requests, in seconds; 0 for no limit.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._last_s = 0.0

    def progressed(self, now: float) -> None:
        """The engine has said something; `now` is the monotonic clock."""
        self._last_s = now

    def is_stuck(self, now: float, *, has_running: bool) -> bool:
        """To be asked every now and then: whether it has been silent for too long."""
        if not has_running:
            self._last_s = now
        return 0 < self._limit_s < now - self._last_s
