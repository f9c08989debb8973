"""Priority order in which tenants share the workers (pure).

The first in order gets the place. But if its tenant has many requests running, and another tenant that waits
has few, that one goes first:

    running(first's tenant) >= running(other tenant) + 2 + levels of priority that the first is above

So another tenant waits for a flood no longer than one request runs. Priority still gives a tenant more
places, one for each level. Urgent requests are exempt: they go in priority order.

Within a tenant the order is that of priority. A tenant with at most one request running is never set back, so
aging keeps its promise there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from .jobs import Job
from .ranking import Ranking

if TYPE_CHECKING:
    from .policies import Policy

_LEAST_LEAD = 2


class Places:
    """How many requests of each tenant have a place on a worker, of one model."""

    def __init__(self) -> None:
        self._by_tenant: dict[str, int] = {}

    def __len__(self) -> int:
        """Tenants with requests that have places."""
        return len(self._by_tenant)

    def of(self, tenant: str) -> int:
        return self._by_tenant.get(tenant, 0)

    def take(self, tenant: str) -> None:
        self._by_tenant[tenant] = self.of(tenant) + 1

    def give_back(self, tenant: str) -> None:
        """Raises KeyError if the tenant has none."""
        left = self._by_tenant[tenant] - 1
        if left:
            self._by_tenant[tenant] = left
        else:
            del self._by_tenant[tenant]


# Places a tenant has, the rank of its first request, and the tenant.
_Entry = tuple[int, tuple[float, int], str]


class SharedPriority:
    """The policy `priority`. Each operation costs O(log n) in the jobs and the tenants that wait.

    Args:
        new_order: makes an empty queue in priority order.
        places: what each tenant has running; `on_places` must follow every change.
        is_urgent: whether a job goes before others whatever its tenant has.
    """

    def __init__(
        self, new_order: Callable[[], Policy], places: Places, is_urgent: Callable[[Job], bool]
    ) -> None:
        self._new_order = new_order
        self._places = places
        self._is_urgent = is_urgent
        self._all = new_order()
        self._tenants: dict[str, Policy] = {}
        self._order: Ranking[_Entry] = Ranking()
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._all)

    def push(self, job: Job) -> None:
        self._all.push(job)
        self._of(job.key.tenant).push(job)
        self.on_places(job.key.tenant)

    def put_back(self, job: Job) -> None:
        self._all.put_back(job)
        self._of(job.key.tenant).put_back(job)
        self.on_places(job.key.tenant)

    def _of(self, tenant: str) -> Policy:
        jobs = self._tenants.get(tenant)
        if jobs is None:
            jobs = self._tenants[tenant] = self._new_order()
        return jobs

    def first(self) -> Job | None:
        job = self._all.first()
        if job is None or len(self._tenants) == 1 or self._is_urgent(job):
            return job
        running, _rank, tenant = self._order.first()
        other = self._tenants[tenant].first()
        if other is None:
            return job
        lead = self._places.of(job.key.tenant) - running
        return other if lead >= _LEAST_LEAD + max(0, job.priority - other.priority) else job

    def discard(self, job: Job) -> None:
        self._all.discard(job)
        tenant = job.key.tenant
        jobs = self._tenants[tenant]
        jobs.discard(job)
        if not len(jobs):
            del self._tenants[tenant]
        self.on_places(tenant)

    def position(self, job: Job) -> int:
        """As if tenants were served in turn from now on, but never more than are before it in order."""
        own = self._tenants[job.key.tenant].position(job)
        return min(self._all.position(job), (own + 1) * len(self._tenants) - 1)

    def charge(self, tenant: str, input_tokens: int, output_tokens: int) -> None:
        """The order does not depend on it."""

    def on_places(self, tenant: str) -> None:
        """A tenant has more or fewer places than before, or another first request."""
        jobs = self._tenants.get(tenant)
        first = jobs.first() if jobs is not None else None
        entry = None if first is None else (self._places.of(tenant), first.rank, tenant)
        old = self._entries.get(tenant)
        if entry == old:
            return
        if old is not None:
            self._order.remove(self._entries.pop(tenant))
        if entry is not None:
            self._order.add(entry)
            self._entries[tenant] = entry
