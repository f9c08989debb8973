"""Messages that failed their checks: each is counted, few are logged."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import Counter

from . import logs

_LOG_INTERVAL_S = 10.0

log = logs.get()


class LogThrottle:
    """Lets the first of a kind be logged in each interval.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By kind: when a log line may be written again, and how many had none since the last.
        self._silent_until: dict[str, float] = {}
        self._unlogged: dict[str, int] = {}

    def unlogged(self, kind: str) -> int | None:
        """Number of messages of this kind without a line since the last; None when this one gets none either.

        Args:
            kind: one of few.
        """
        now = self._clock()
        if now < self._silent_until.get(kind, 0.0):
            self._unlogged[kind] = self._unlogged.get(kind, 0) + 1
            return None
        self._silent_until[kind] = now + _LOG_INTERVAL_S
        return self._unlogged.pop(kind, 0)


class BadMessages:
    """Counts bad messages by kind, and logs the first of a kind in each interval.

    Args:
        counter: has the label `kind`.
        clock: monotonic seconds.
    """

    def __init__(self, counter: Counter, clock: Callable[[], float] = time.monotonic) -> None:
        self._counter = counter
        self._throttle = LogThrottle(clock)

    def note(self, kind: str, why: Exception | str, *, subject: str = "") -> None:
        """A message was ignored. `kind` is one of few: it is a label."""
        self._counter.labels(kind).inc()
        unlogged = self._throttle.unlogged(kind)
        if unlogged is not None:
            about = {"kind": kind, "why": str(why)[:200], "subject": subject[:200]}
            log.error("a bad message was ignored", **about, unlogged=unlogged)
