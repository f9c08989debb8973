"""Models that no worker serves, and requests that have waited too long for one (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from inferflux.scheduler.core.types import outcomes
from inferflux.scheduler.core.types.actions import Action
from inferflux.scheduler.core.types.jobs import Demand, Job
from inferflux.v1 import scheduler_pb2

from .queue import ModelQueue
from .state import SchedulerState

# Between two looks at a queue whose requests may have waited too long.
_LOOK_AGAIN_S = 0.5
# Workers that an error names.
_MOST_NAMED = 4

_Wanted = tuple[str, Demand]


class UnservedModels:
    """Knows since when each model is unserved, where requests for it may run.

    Args:
        is_expected: whether a model that no worker serves can be loaded, where requests for it may run.
    """

    def __init__(self, state: SchedulerState, is_expected: Callable[[str, Demand], bool]) -> None:
        self._state = state
        self._is_expected = is_expected
        self._since_s: dict[_Wanted, float] = {}
        self._look_again_s: dict[_Wanted, float] = {}

    def end_overdue(self, now: float) -> list[Action]:
        """End the requests that have waited for a worker for too long."""
        out: list[Action] = []
        for job in self._overdue(now):
            limit_s = self._state.limits.no_worker_timeout_s
            if self._state.placement.is_served(job.model, Demand(job.demand.pools)):
                why = outcomes.replaced(job, limit_s)
            else:
                why = outcomes.no_worker(job, limit_s, self._draining(job.model))
            out += self._state.finish(job, why)
        return out

    def _draining(self, model: str) -> list[str]:
        """The first workers that have a model and are draining, by id."""
        return sorted(
            worker.worker_id
            for worker in self._state.table.workers.values()
            if worker.state == scheduler_pb2.WORKER_STATE_DRAINING and model in worker.digests
        )[:_MOST_NAMED]

    def _overdue(self, now: float) -> Iterator[Job]:
        queues, is_served = self._state.queue, self._state.placement.is_served
        wanted: set[_Wanted] = set()
        for model, queue in queues.models.items():
            for demand in queue.demands:
                if not is_served(model, demand) and not self._is_expected(model, demand):
                    wanted.add((model, demand))
                    yield from self._overdue_of(queue, (model, demand), now)
        queues.forget_empty(is_served)
        for served in self._since_s.keys() - wanted:
            self._since_s.pop(served, None)
            self._look_again_s.pop(served, None)

    def _overdue_of(self, queue: ModelQueue, wanted: _Wanted, now: float) -> Iterator[Job]:
        timeout_s = self._state.limits.no_worker_timeout_s
        since_s = self._since_s.setdefault(wanted, now)
        if now - since_s < timeout_s or now < self._look_again_s.get(wanted, 0):
            return
        self._look_again_s[wanted] = now + _LOOK_AGAIN_S
        demand = wanted[1]
        yield from [
            job
            for job in queue
            if job.is_queued and job.demand == demand and now - job.wait.queued_s >= timeout_s
        ]
