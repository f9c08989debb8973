"""Jobs as they come from the work queue: what is made of a request, and whether it may wait (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from inferflux.common.contract.callers.cache_scope import cache_scope_of
from inferflux.common.contract.epochs import MAX_EPOCH
from inferflux.scheduler.core.types import bounds
from inferflux.scheduler.core.types.actions import Action
from inferflux.scheduler.core.types.bounds import Bounds
from inferflux.scheduler.core.types.facets import INHERITED, NO_REPLAY, Wait
from inferflux.scheduler.core.types.jobs import Job, RequestKey
from inferflux.scheduler.core.workers.rates import ModelRates
from inferflux.v1 import scheduler_pb2

from .planning import Planner
from .state import SchedulerState

# A job that claims to be older counts as this old: its age makes its epochs and its priority.
_OLDEST_S = 86_400.0
_NOT_SHARING = (scheduler_pb2.PREFIX_SHARING_UNSPECIFIED, scheduler_pb2.PREFIX_SHARING_NONE)


class Arrivals:
    """Makes jobs of requests, and admits new ones."""

    def __init__(self, state: SchedulerState, planner: Planner, rates: ModelRates) -> None:
        limits = state.limits
        self._state = state
        self._planner = planner
        self._rates = rates
        self._bounds = Bounds(limits.max_queued, limits.max_queued_per_tenant, limits.queue_limit)
        self._arrivals = 0

    def make_job(
        self,
        request: scheduler_pb2.InferenceRequest,
        handle: object,
        sequence: int,
        now: float,
        cached_on: Mapping[str, int],
        *,
        is_inherited: bool,
    ) -> Job:
        """The job of a request.

        Args:
            cached_on: prompt tokens that workers have cached, by worker id.
            is_inherited: it may have run under an earlier scheduler.
        """
        self._arrivals += 1
        enqueued_s = min(max(request.enqueued_unix_ms / 1000 or now, now - _OLDEST_S), now)
        return Job(
            key=RequestKey(request.tenant, request.request_id),
            request=request,
            handle=handle,
            sequence=sequence,
            arrival=self._arrivals,
            enqueued_s=enqueued_s,
            deadline_s=request.deadline_unix_ms / 1000 or None,
            since_s=enqueued_s,
            epoch=min(max(1, request.epoch), MAX_EPOCH),
            wait=Wait(now),
            replay=INHERITED if is_inherited else NO_REPLAY,
            cached_on=self._with_same_prompt(request, cached_on),
        )

    def _with_same_prompt(
        self, request: scheduler_pb2.InferenceRequest, cached_on: Mapping[str, int]
    ) -> Mapping[str, int]:
        """Return the cached tokens of a prompt by worker, with those that the request sharing it has
        computed: the prefix index may not have that yet."""
        other = self._state.jobs.get(RequestKey(request.tenant, request.same_prompt_as))
        worker = self._state.worker_of(other) if other is not None else None
        if other is None or worker is None or worker.status.prefix_sharing in _NOT_SHARING:
            return cached_on
        if (other.model, cache_scope_of(other.request)) != (request.model, cache_scope_of(request)):
            return cached_on
        return {**cached_on, worker.worker_id: min(other.prompt_tokens, len(request.prompt_token_ids))}

    def admit(self, job: Job, now: float) -> list[Action]:
        """A new job waits, unless too many do already, or it could not be served in time."""
        queues = self._state.queue
        if why := self._bounds.why_not(queues.waiting, job.key.tenant, len(self._state.jobs) - 1):
            queue = queues.models.get(job.model)
            pace_s = queue.departure_interval_s if queue is not None else 0.0
            return self._state.finish(job, bounds.full(why, job.key.tenant, queues.waiting, pace_s))
        out = self._state.enqueue(job, now)
        if job.is_queued and job.deadline_s is not None:
            wait_s = 0.0 if self._planner.has_room(job) else queues.models[job.model].certain_wait_s(job)
            if self._rates.is_hopeless(job, now, wait_s):
                out += self._state.finish(job, self._rates.unreachable(job, now, wait_s))
        return out
