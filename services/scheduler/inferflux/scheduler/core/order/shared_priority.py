"""Priority order in which tenants share the workers (pure).

The first in order gets the place. But if its tenant has many requests running, and another tenant that waits
has few, that one goes first:

    running(first's tenant) >= running(other tenant) + 2 + levels of priority that the first is above

So another tenant waits for a flood no longer than one request runs. Priority still gives a tenant more
places, one for each level, but no more than half of those that run: no number of levels shuts another tenant
out. Urgent requests and the others are each shared so: see `urgent`.

Within a tenant the order is that of priority. A tenant with at most one request running is never set back, so
aging keeps its promise there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from inferflux.scheduler.core.types.jobs import Job
from inferflux.scheduler.core.types.ranking import Ranking

from .queue_policy import QueuePolicy
from .running import Running

_LEAST_LEAD = 2


# Requests of a tenant that run, the order of its first that waits, and the tenant.
_Entry = tuple[int, tuple[float, int], str]


class SharedPriority(QueuePolicy):
    """Urgent requests, or the others, under the policy `priority`.

    Each operation costs O(log n) in the jobs and the tenants that wait.

    Args:
        new_order: makes an empty queue in priority order.
        running: what each tenant has running; `on_running` must follow every change.
    """

    def __init__(self, new_order: Callable[[], QueuePolicy], running: Running) -> None:
        self._new_order = new_order
        self._running = running
        self._all = new_order()
        self._tenants: dict[str, QueuePolicy] = {}
        self._order: Ranking[_Entry] = Ranking()
        self._entries: dict[str, _Entry] = {}

    def urgency_key(self, job: Job) -> float:
        return self._all.urgency_key(job)

    def precedes(self, job: Job, running: Job) -> bool:
        return self._all.precedes(job, running)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._all)

    def push(self, job: Job) -> None:
        self._all.push(job)
        self._of(job.key.tenant).push(job)
        self.on_running(job.key.tenant)

    def put_back(self, job: Job) -> None:
        self._all.put_back(job)
        self._of(job.key.tenant).put_back(job)
        self.on_running(job.key.tenant)

    def _of(self, tenant: str) -> QueuePolicy:
        jobs = self._tenants.get(tenant)
        if jobs is None:
            jobs = self._tenants[tenant] = self._new_order()
        return jobs

    def first(self) -> Job | None:
        job = self._all.first()
        if job is None or len(self._tenants) == 1:
            return job
        tenant = self._order.first()[-1]
        other = self._tenants[tenant].first()
        return job if other is None else self._first_of_two(job, other)

    def first_of(self, jobs: Sequence[Job]) -> Job:
        fewest = min(self._running.of(job.key.tenant) for job in jobs)
        others = [job for job in jobs if self._running.of(job.key.tenant) == fewest]
        return self._first_of_two(self._all.first_of(jobs), self._all.first_of(others))

    def _first_of_two(self, job: Job, other: Job) -> Job:
        """The other, if its tenant has clearly fewer requests running."""
        lead = self._running.of(job.key.tenant) - self._running.of(other.key.tenant)
        return other if lead >= _LEAST_LEAD + self._levels_that_count(job, other) else job

    def _levels_that_count(self, job: Job, other: Job) -> int:
        total = self._running.total
        return max(0, min(job.priority - other.priority, total // 2, total - _LEAST_LEAD))

    def discard(self, job: Job) -> None:
        self._all.discard(job)
        tenant = job.key.tenant
        jobs = self._tenants[tenant]
        jobs.discard(job)
        if not len(jobs):
            del self._tenants[tenant]
        self.on_running(tenant)

    def position(self, job: Job) -> int:
        """Position as if tenants were served in turn from now on, but never more than are before it in
        order."""
        own = self._tenants.get(job.key.tenant)
        if own is None:
            return min(self._all.position(job), len(self._tenants))
        return min(self._all.position(job), (own.position(job) + 1) * len(self._tenants) - 1)

    def on_running(self, tenant: str) -> None:
        """A tenant has more or fewer requests running than before, or another first request."""
        jobs = self._tenants.get(tenant)
        first = jobs.first() if jobs is not None else None
        entry = None if first is None else (self._running.of(tenant), first.order, tenant)
        old = self._entries.get(tenant)
        if entry == old:
            return
        if old is not None:
            self._order.remove(self._entries.pop(tenant))
        if entry is not None:
            self._order.add(entry)
            self._entries[tenant] = entry
