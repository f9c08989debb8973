"""Requests that gateways read and that no job stands for (pure).

The work queue may lose a job that it has acknowledged: by a damaged file, or in a power cut. The leader that
has the job goes on with it. The next leader is never given it, and its client would wait for nothing.

A job that has not come yet looks the same, so each is a suspicion only: whether the work queue has more to
give is for others to ask.
"""

from __future__ import annotations

from collections.abc import Iterator

from inferflux.scheduler.core.types.jobs import Attempt
from inferflux.scheduler.core.types.memory import Recent

_REMEMBERED = 65_536
# Reports come every second: after this long without one, it has no reader any more.
_REPORTED_WITHIN_S = 3.0


class LostJobs:
    """Attempts that were reported without a job, and since when.

    Args:
        after_s: how long an attempt has to be without a job before it is suspected, and again after that.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        # Since when it is reported, and when it was last.
        self._missed: Recent[Attempt, tuple[float, float]] = Recent(_REMEMBERED)

    def report(self, attempt: Attempt, now: float) -> None:
        """A gateway reads it, and there is no job."""
        since_s, last_s = self._missed.get(attempt) or (now, now)
        self._missed.remember(attempt, (since_s if now - last_s <= _REPORTED_WITHIN_S else now, now))

    def forget(self, attempt: Attempt) -> None:
        """Its job has come."""
        self._missed.pop(attempt)

    def due(self, now: float) -> Iterator[Attempt]:
        """Yield the attempts to suspect now. They are suspected again after as long, if they are still
        reported."""
        while (oldest := self._missed.oldest()) and now - oldest[1][1] > _REPORTED_WITHIN_S:
            self._missed.pop(oldest[0])
        due = [attempt for attempt, (since_s, _) in self._missed.items() if now - since_s >= self._after_s]
        for attempt in due:
            self._missed.pop(attempt)
            yield attempt
