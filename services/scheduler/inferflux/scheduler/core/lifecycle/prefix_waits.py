"""Decision that a request waits for the worker that has its prefix, or does not (pure).

That worker has no room now, and another has. There the prefix would be computed once more, which delays the
request and all that run there. Waiting delays the request alone. Both delays are estimated, by the tokens
that workers compute meanwhile and their measured speeds, and added up over the requests that they meet. A
request waits if that is the smaller sum, and no longer than the other sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferflux.scheduler.core.types.jobs import Job
from inferflux.v1 import scheduler_pb2

# What one more request says about the next ones.
_SMOOTHING = 0.1


@dataclass(slots=True)
class MeanService:
    """Mean cost of the last requests of a model: prompt tokens computed, and tokens generated."""

    computed: float = 0.0
    generated: float = 0.0
    requests: int = 0

    def add(self, computed: int, generated: int) -> None:
        """A request has ended."""
        self.requests += 1
        weight = max(_SMOOTHING, 1 / self.requests)
        self.computed += weight * (computed - self.computed)
        self.generated += weight * (generated - self.generated)


def worth_s(saved: float, holder: scheduler_pb2.WorkerStatus) -> float:
    """Seconds that computing `saved` prompt tokens takes; 0 while the worker has not measured its speed."""
    rate = holder.prefill_tokens_per_s
    return saved / rate if rate > 0 else 0.0


def expected_wait_s(ahead: int, service: MeanService, holder: scheduler_pb2.WorkerStatus) -> float:
    """Until a worker that has no slot free has one for a request, and for the `ahead` that wait before it.

    Requests leave a full worker as fast as it does what one takes.

    Returns:
        Infinity while that is not known.
    """
    prefill, decode = holder.prefill_tokens_per_s, holder.decode_tokens_per_s
    if not service.requests or prefill <= 0 or decode <= 0:
        return float("inf")
    return (ahead + 1) * (service.computed / prefill + service.generated / decode)


def longest_wait_s(
    job: Job,
    saved: float,
    service: MeanService,
    holder: scheduler_pb2.WorkerStatus,
    now: float,
    *,
    ahead: int,
    delayed: int,
) -> float:
    """Longest time that a request waits for a worker without room, in seconds; 0 if it does not.

    What has run before does not wait: its stream has stopped. Nor does what could miss its deadline by it.

    Args:
        saved: prompt tokens that this worker need not compute, and the best other one would; times as many as
            that one is slower.
        ahead: requests that wait for this worker already.
        delayed: requests that run on the other worker.
    """
    if job.has_run or job.replay.is_due:
        return 0.0
    worth = worth_s(saved, holder) * (1 + delayed)
    if job.deadline_s is not None and now + 2 * worth > job.deadline_s:
        return 0.0
    return worth if expected_wait_s(ahead, service, holder) < worth else 0.0
