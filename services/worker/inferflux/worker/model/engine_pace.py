"""Pace of an engine: how fast it prefills and decodes, and whether it stands still (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from inferflux.common.process.machine.cpu_time import is_late
from inferflux.v1 import engine_pb2

_SMOOTHING = 0.1
# Of an interval. An engine that spends less stands still; one that spends more, and not all, is held up.
_IDLE = 0.02


@dataclass(slots=True)
class Rates:
    """Tokens per second, smoothed over the engine's steps; 0 before the first such step."""

    prefill: float = 0.0
    decode: float = 0.0

    def observe(self, stats: engine_pb2.StepStats) -> None:
        """Take a step into account, unless it was a mixed batch."""
        seconds = max(stats.step_us, 1) / 1e6
        if stats.prefill_tokens and not stats.decode_tokens:
            self.prefill = _smoothed(self.prefill, stats.prefill_tokens / seconds)
        elif stats.decode_tokens and not stats.prefill_tokens:
            self.decode = _smoothed(self.decode, stats.decode_tokens / seconds)


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


def _smoothed(old: float, new: float) -> float:
    return new if old == 0.0 else old + _SMOOTHING * (new - old)
