"""When a tokenizer that could not be loaded may be tried again (pure)."""

from __future__ import annotations

_FIRST_S = 1.0
_LONGEST_S = 60.0
# Failures without a wait: a process may be ended from outside while it loads.
_FREE_FAILURES = 1


class LoadBackoff:
    """Counts failures in a row. Times are seconds of a monotonic clock, passed in.

    Attributes:
        why: the last failure; "" if the last attempt succeeded.
    """

    def __init__(self) -> None:
        self.why = ""
        self._failures = 0
        self._until = 0.0

    def failed(self, why: str, now: float) -> None:
        self.why = why
        self._failures += 1
        beyond = self._failures - _FREE_FAILURES
        if beyond > 0:
            self._until = now + min(_FIRST_S * 2.0 ** min(beyond - 1, 30), _LONGEST_S)

    def succeeded(self) -> None:
        self.why = ""
        self._failures = 0
        self._until = 0.0

    def wait_s(self, now: float) -> float:
        """Seconds until the next attempt; 0 if it may be made now."""
        return max(self._until - now, 0.0)
