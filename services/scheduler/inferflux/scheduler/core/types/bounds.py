"""Bounds of the jobs that may wait, in all and of one tenant (pure).

Only jobs that are new are held against the bounds. What has been admitted stays: a job that comes back to the
queue counts, but is never refused, and neither is one that an earlier scheduler admitted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from inferflux.common.contract.callers.places import may_have_more
from inferflux.common.contract.errors import ResourceExhausted, to_failed
from inferflux.v1 import tokens_pb2

_LEAST_DELAY_S = 1.0
_MOST_DELAY_S = 30.0


class Full(Enum):
    """Bound that is reached."""

    QUEUE = "QUEUE_FULL"
    TENANT = "TENANT_QUEUE_FULL"


class Waiting:
    """Number of jobs that wait now, in all and by tenant. The queue itself counts, so that it cannot be
    wrong."""

    def __init__(self) -> None:
        self.total = 0
        self._by_tenant: Counter[str] = Counter()

    def of(self, tenant: str) -> int:
        return self._by_tenant[tenant]

    @property
    def tenants(self) -> int:
        """Tenants that have jobs waiting."""
        return len(self._by_tenant)

    def enter(self, tenant: str) -> None:
        self.total += 1
        self._by_tenant[tenant] += 1

    def leave(self, tenant: str) -> None:
        self.total -= 1
        left = self._by_tenant[tenant] - 1
        if left:
            self._by_tenant[tenant] = left
        else:
            del self._by_tenant[tenant]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Most jobs that may wait; 0 sets no bound.

    Attributes:
        max_queued: jobs that may wait, in all.
        max_queued_per_tenant: of each tenant. 0: beside others as many as it leaves free; alone nearly all.
        queue_limit: jobs that the work queue holds, those that run among them.
    """

    max_queued: int = 0
    max_queued_per_tenant: int = 0
    queue_limit: int = 0

    def why_not(self, waiting: Waiting, tenant: str, held: int = 0) -> Full | None:
        """The bound that keeps a new job of this tenant out; None when it may wait.

        Args:
            held: jobs in the work queue, the new one left out.
        """
        if 0 < self.max_queued_per_tenant <= waiting.of(tenant):
            return Full.TENANT
        if 0 < self.max_queued <= waiting.total:
            return Full.QUEUE
        if not self.max_queued_per_tenant and not self._may_have_more(waiting, tenant, held):
            return Full.TENANT
        return None

    def _may_have_more(self, waiting: Waiting, tenant: str, held: int) -> bool:
        """True if each bound leaves room for one more of this tenant."""
        n = waiting.of(tenant)
        is_alone = waiting.total == n
        # What has no place in the work queue, that refuses itself: a newcomer is not refused here.
        bounds = [
            (self.max_queued, self.max_queued - waiting.total),
            (self.queue_limit, max(1, self.queue_limit - held)),
        ]
        return all(may_have_more(n, free=free, size=size, is_alone=is_alone) for size, free in bounds if size)


def full(why: Full, tenant: str, waiting: Waiting, departure_interval_s: float) -> tokens_pb2.Failed:
    """The end of a job that was kept out.

    Args:
        departure_interval_s: of the job's queue, between two departures; 0 while it is not known.
    """
    if why is Full.TENANT:
        n = waiting.of(tenant)
        message = f"{n} requests of tenant {tenant} wait already, as many as one tenant may have waiting now"
    else:
        n, message = waiting.total, f"{waiting.total} requests wait already"
    delay_s = retry_delay_s(n, departure_interval_s)
    return to_failed(ResourceExhausted(message, reason=why.value, retry_delay_s=delay_s))


def retry_delay_s(n_waiting: int, departure_interval_s: float) -> float:
    """Seconds until a client should try again: once a tenth of those that wait are likely to be gone; 1 to 30
    seconds."""
    return min(_MOST_DELAY_S, max(_LEAST_DELAY_S, n_waiting / 10 * departure_interval_s))
