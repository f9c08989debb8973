"""Search for the request that killed an engine (pure).

An engine that dies says nothing about which of its requests is to blame. All that ran are suspects. A suspect
is retried alone on a worker, for a few tokens past the point it had reached: its probation.

- It gets past that point: it is cleared, and runs beside others again.
- The engine dies again: nothing else ran, so the suspect is to blame, and fails.

So a request that kills engines is resident with others once, and its neighbours are never blamed for it. Each
further death makes the next probation longer. A request that kills late, or only beside others, ends up alone
until it is done.

A worker that is lost as a whole is weaker evidence: a cut cable looks the same. Its requests are suspects
from the second such loss on, and none of them fails for it by this rule.
"""

from __future__ import annotations

from enum import Enum

from inferflux.scheduler.core.types.facets import RequeueReason
from inferflux.scheduler.core.types.jobs import Job, JobState
from inferflux.scheduler.core.types.limits import Limits
from inferflux.scheduler.core.workers.slots import WorkerSlots

_FIRST_PROBATION_TOKENS = 8
_PROBATION_GROWTH = 4
# By then it is longer than any answer.
_MOST_GROWTH = 12
_WORKER_DEATHS_TO_SUSPECT = 2


class Blame(Enum):
    """Blame that a loss puts on a request."""

    NONE = "none"
    SUSPECT = "suspect"
    CONVICTED = "convicted"


def probation_tokens(job: Job) -> int:
    """New tokens after which a suspect is cleared."""
    deaths = max(1, job.retries.engine_deaths + job.retries.worker_deaths)
    return _FIRST_PROBATION_TOKENS * int(_PROBATION_GROWTH ** min(deaths - 1, _MOST_GROWTH))


def has_passed(job: Job) -> bool:
    """True if a suspect has run past the point at which its engine died."""
    return job.stay.seen_tokens - job.generated_tokens >= probation_tokens(job)


def blame_for_worker(job: Job, worker: WorkerSlots, reason: RequeueReason) -> Blame:
    """Blame of one request for the loss of its whole worker. The death is counted."""
    if reason not in (RequeueReason.WORKER_DEAD, RequeueReason.WORKER_RESTARTED) or not _may_have_run(
        job, worker
    ):
        return Blame.NONE
    job.retries = job.retries.after_worker_death()
    return Blame.SUSPECT if job.retries.worker_deaths >= _WORKER_DEATHS_TO_SUSPECT else Blame.NONE


def blame_for_engine(job: Job, worker: WorkerSlots, *, was_alone: bool, limits: Limits) -> Blame:
    """Blame of one request for the death of its engine. The death is counted.

    Args:
        was_alone: whether no other request may have run.
    """
    if not _may_have_run(job, worker):
        return Blame.NONE
    job.retries = job.retries.after_engine_death()
    is_certain = was_alone and job.is_suspect and worker.alone == job.key
    if is_certain and job.retries.engine_deaths >= limits.poison_deaths:
        return Blame.CONVICTED
    return Blame.SUSPECT


def _may_have_run(job: Job, worker: WorkerSlots) -> bool:
    return job.state is not JobState.READING and worker.assignments[job.key].may_compute
