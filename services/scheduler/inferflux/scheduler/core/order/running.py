"""Running requests of one model: how many each tenant has, and how many are not urgent (pure)."""

from __future__ import annotations

from collections.abc import Callable

from inferflux.scheduler.core.types.jobs import Job

# Of the slots, guaranteed to requests that are not urgent, unless an operator says otherwise.
ORDINARY_SHARE = 0.25


class Running:
    """Requests that have a place on a worker.

    Args:
        ordinary_share: of the slots, guaranteed to requests that are not urgent while any of them wait.
        is_urgent: whether a request is urgent, when it takes its place.
        slots: how many requests may run at once, on all workers of the model.
    """

    def __init__(
        self,
        *,
        ordinary_share: float = 0.0,
        is_urgent: Callable[[Job], bool] = lambda _job: False,
        slots: Callable[[], int] = lambda: 0,
    ) -> None:
        self._ordinary_share = ordinary_share
        self._is_urgent = is_urgent
        self._slots = slots
        self._by_tenant: dict[str, int] = {}
        self._ordinary: set[Job] = set()
        self._total = 0

    def __len__(self) -> int:
        """Tenants with requests that run."""
        return len(self._by_tenant)

    def of(self, tenant: str) -> int:
        return self._by_tenant.get(tenant, 0)

    @property
    def total(self) -> int:
        """Running requests of all tenants."""
        return self._total

    @property
    def guaranteed(self) -> int:
        """Slots that requests which are not urgent may have before urgent ones. At least one slot is left to
        the urgent, and at least one guaranteed where there are two."""
        slots = self._slots() if self._ordinary_share else 0
        return min(slots - 1, max(1, int(self._ordinary_share * slots))) if slots > 1 else 0

    @property
    def is_ordinary_due(self) -> bool:
        """True if the next place is for a request that is not urgent.

        Fewer of them run than are guaranteed, and than their share of what runs: memory may admit fewer
        requests than there are slots.
        """
        ordinary, guaranteed = len(self._ordinary), self.guaranteed
        urgent = self._total - ordinary
        return ordinary < guaranteed and ordinary * (self._slots() - guaranteed) < urgent * guaranteed

    @property
    def may_yield(self) -> int:
        """Number of the requests that are not urgent and may give way to urgent ones."""
        return max(0, len(self._ordinary) - self.guaranteed)

    def is_ordinary(self, job: Job) -> bool:
        """True if it runs, and was not urgent when it took its place."""
        return job in self._ordinary

    def add(self, job: Job) -> None:
        tenant = job.key.tenant
        self._by_tenant[tenant] = self.of(tenant) + 1
        self._total += 1
        if not self._is_urgent(job):
            self._ordinary.add(job)

    def remove(self, job: Job) -> None:
        """Raises KeyError if its tenant has none."""
        tenant = job.key.tenant
        left = self._by_tenant[tenant] - 1
        if left:
            self._by_tenant[tenant] = left
        else:
            del self._by_tenant[tenant]
        self._ordinary.discard(job)
        self._total -= 1
