"""Models that no worker serves, and requests that have waited too long for one (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from .jobs import Job
from .state import SchedulerState

# Between two looks at a queue whose requests may have waited too long.
_LOOK_AGAIN_S = 0.5


class UnservedModels:
    """Knows since when each model is unserved."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._since_s: dict[str, float] = {}
        self._look_again_s: dict[str, float] = {}

    def overdue(self, now: float) -> Iterator[Job]:
        """Requests that have waited for a worker for too long: they are to be ended."""
        timeout_s = self._state.limits.no_worker_timeout_s
        queues, is_served = self._state.queue, self._state.placement.is_served
        for model, queue in queues.models.items():
            if not queue or is_served(model):
                self._forget(model)
                continue
            since_s = self._since_s.setdefault(model, now)
            if now - since_s < timeout_s or now < self._look_again_s.get(model, 0):
                continue
            self._look_again_s[model] = now + _LOOK_AGAIN_S
            yield from [job for job in queue if job.is_queued and now - job.queued_s >= timeout_s]
        queues.forget_empty(is_served)
        for model in self._since_s.keys() - queues.models.keys():
            self._forget(model)

    def _forget(self, model: str) -> None:
        self._since_s.pop(model, None)
        self._look_again_s.pop(model, None)
