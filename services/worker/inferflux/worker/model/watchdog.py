"""A watch over the progress of the engine (pure)."""

from __future__ import annotations

from inferflux.common.process.machine.cpu_time import is_late

# Of an interval. An engine that spends less stands still; one that spends more, and not all, is held up.
_IDLE = 0.02


class Watchdog:
    """Notices that an engine should make steps and makes none.

    It counts calls, not seconds of a clock: while the worker itself stands still, it reads no reports, and
    the engine is not to blame. Of an engine that a busy machine holds up it counts the CPU time.

    Args:
        limit_s: longest time without a step while requests run, in seconds; 0 for no limit.
        interval_s: between two calls of `is_stuck`, in seconds.
    """

    def __init__(self, limit_s: float, interval_s: float) -> None:
        self._limit_s = limit_s
        self._interval_s = interval_s
        self._silent_s = self._held_up_s = 0.0
        self._cpu_s = 0.0

    def progressed(self) -> None:
        """The engine has reported a step."""
        self._silent_s = self._held_up_s = 0.0

    def is_stuck(self, *, has_running: bool, cpu_s: float = 0.0) -> bool:
        """Return whether it has made no step for too long. To be called every `interval_s`.

        Args:
            cpu_s: that the engine has spent since it began; 0: not known.
        """
        spent_s, self._cpu_s = cpu_s - self._cpu_s, cpu_s
        if not has_running:
            self.progressed()
            return False
        is_held_up = _IDLE * self._interval_s < spent_s < self._interval_s
        self._silent_s += spent_s if is_held_up else self._interval_s
        self._held_up_s += self._interval_s
        return self._limit_s > 0 and is_late(
            worked_s=self._silent_s, waited_s=self._held_up_s, limit_s=self._limit_s
        )
