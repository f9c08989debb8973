"""Gateways that have readers of a request, and the time at which it ends for the lack of one (pure).

Gateways report once a second what they relay to clients, and say when the last reader of a request has left.
A request outlives its last reader by its resume window. A gateway that stops reporting may have been killed,
drained or cut off: its requests get the unread limit, or their window where that is longer.

After a start, a reconnect or a standstill nothing ends before every gateway had time to report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from .jobs import Job, JobState
from .timers import Timers

# A report is due every second.
_REPORTS_WITHIN_S = 3.0
# More gateways than these do not read one request; what claims so is no gateway.
_MOST_GATEWAYS = 16
# A new leader does not wait as long for the readers of what it takes over: after a restart of everything,
# requests that no client resumes would keep new ones waiting.
_INHERITED_LIMIT_S = 10.0
# Timers of ended jobs that are held before they are cleared.
_ENDED_HELD = 64


@dataclass(slots=True)
class Readers:
    """The readers of one request. Times are in seconds.

    Attributes:
        window_s: how long it outlives its last reader.
        unreported_limit_s: how long it outlives the last report; infinite where reports do not count.
        unread_s: since when it may be without a reader.
        patience_s: how long it may be so.
        reported_s: when each gateway last reported a reader.
        timer_s: when it is looked at next.
    """

    window_s: float
    unreported_limit_s: float
    unread_s: float
    patience_s: float
    reported_s: dict[str, float] = field(default_factory=dict)
    timer_s: float = math.inf

    @classmethod
    def of_new(cls, job: Job, unread_limit_s: float, now: float) -> Readers:
        """Readers of a request that just came: its gateway has not reported it yet."""
        window_s = job.request.resume_window_s
        limit_s = max(window_s, unread_limit_s) if unread_limit_s else math.inf
        patience_s = min(limit_s, max(window_s, _INHERITED_LIMIT_S)) if job.replay.is_inherited else limit_s
        return cls(window_s, limit_s, now, patience_s)

    @property
    def ends_s(self) -> float:
        """Time at which the request ends unless a reader is reported."""
        last_s = max(self.reported_s.values(), default=-math.inf)
        return max(self.unread_s + self.patience_s, last_s + self.unreported_limit_s)

    def report(self, gateway_id: str, now: float) -> None:
        if gateway_id not in self.reported_s and len(self.reported_s) >= _MOST_GATEWAYS:
            del self.reported_s[min(self.reported_s, key=self.reported_s.__getitem__)]
        self.reported_s[gateway_id] = now

    def leave(self, gateway_id: str, now: float, *, is_handed_over: bool) -> None:
        """A gateway has no reader of it any more."""
        self.reported_s.pop(gateway_id, None)
        self.unread_s = now
        self.patience_s = self.unreported_limit_s if is_handed_over else self.window_s

    def reset_liveness(self, now: float) -> None:
        """No report could arrive until now."""
        self.unread_s = max(self.unread_s, now)
        for gateway_id in self.reported_s:
            self.reported_s[gateway_id] = max(self.reported_s[gateway_id], now)


class ReaderWatch:
    """Finds the requests that have been without a reader for too long.

    Args:
        unread_limit_s: how long a request outlives a gateway that stopped reporting it; 0: for ever.
        now: when the scheduler starts.
    """

    def __init__(self, unread_limit_s: float, now: float) -> None:
        self._unread_limit_s = unread_limit_s
        self._is_known_s = now + _REPORTS_WITHIN_S
        self._timers: Timers[tuple[Job, float]] = Timers()

    def begin(self, job: Job, now: float) -> None:
        """Watch a job, if a gateway submitted it: readers of others are not reported."""
        if job.attempt_id:
            job.readers = Readers.of_new(job, self._unread_limit_s, now)
            self._set_timer(job, job.readers)

    def report(self, job: Job, gateway_id: str, now: float) -> None:
        if job.readers is not None:
            job.readers.report(gateway_id, now)

    def leave(self, job: Job, gateway_id: str, now: float, *, is_handed_over: bool) -> bool:
        """Take note that a gateway has no reader any more; whether the job may be cancelled now."""
        if job.readers is None:
            return False
        job.readers.leave(gateway_id, now, is_handed_over=is_handed_over)
        self._set_timer(job, job.readers)
        return job.readers.timer_s <= now

    def reset_liveness(self, jobs: Iterable[Job], now: float) -> None:
        """No report could arrive until now: every gateway gets time to send one."""
        self._is_known_s = now + _REPORTS_WITHIN_S
        for job in jobs:
            if job.readers is not None:
                job.readers.reset_liveness(now)

    def due(self, now: float) -> Iterator[Job]:
        """Jobs to be cancelled for the lack of a reader, each once."""
        for job, timer_s in self._timers.due(now):
            readers = job.readers
            if readers is None or readers.timer_s != timer_s or job.state is JobState.FINISHED:
                continue
            readers.timer_s = math.inf
            if max(readers.ends_s, self._is_known_s) <= now:
                yield job
            else:
                self._set_timer(job, readers)

    def let_go_of_ended(self, n_jobs: int) -> None:
        """Windows may be long: until they pass, jobs that have ended would stay in memory."""
        if len(self._timers) > 2 * n_jobs + _ENDED_HELD:
            self._timers.keep(lambda entry: _is_awaited(*entry))

    def _set_timer(self, job: Job, readers: Readers) -> None:
        due_s = max(readers.ends_s, self._is_known_s)
        if due_s < readers.timer_s:
            readers.timer_s = due_s
            self._timers.add(due_s, (job, due_s))


def _is_awaited(job: Job, timer_s: float) -> bool:
    return job.state is not JobState.FINISHED and job.readers is not None and job.readers.timer_s == timer_s
