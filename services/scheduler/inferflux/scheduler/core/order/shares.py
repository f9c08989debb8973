"""Fair shares: the service that each tenant has had, and the tenant that is next (pure).

The virtual token counters of "Fairness in Serving Large Language Models" (Sheng et al., OSDI '24): a tenant's
counter rises with the tokens that are computed for it, divided by its weight, and the next request is one of
the tenant with the smallest counter among those that have some waiting. So the counters of tenants that
always have requests waiting differ by no more than what the workers hold at once. A tenant that had none
waiting is lifted to the smallest counter of those that have, so that an idle tenant saves up no credit;
what it was served beyond that it still owes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from weakref import WeakSet

from inferflux.scheduler.core.types.ranking import Ranking

from .tenant_service import TenantService

_MOST_IDLE = 1024


class Floor:
    """Floor shared by the lanes of one model's queue: the smallest counter of the tenants that wait in
    any."""

    def __init__(self) -> None:
        self._lanes: WeakSet[TenantShares] = WeakSet()
        self.last_left = ""

    def join(self, lane: TenantShares) -> None:
        self._lanes.add(lane)

    def counter(self) -> float | None:
        """None while no tenant waits."""
        return min((least for lane in self._lanes if (least := lane.least) is not None), default=None)


class TenantShares:
    """The order of one queue's tenants by their counters; "active" are those with requests waiting.

    Args:
        weights: by tenant, above 0; 1 where a tenant is not in it. Of two tenants that always have requests
            waiting, one with twice the weight is served twice as much.
        service: the counters, which several queues may share; of this queue alone when not given.
        floor: of the queue that this is a lane of; of this one alone when not given.
        input_cost: of a prompt token.
        output_cost: of a generated token. It takes more of a step's time, and the paper's pricing is 1 to 2.

    Raises:
        ValueError: for a weight or a cost that is no positive number, naming it.
    """

    def __init__(
        self,
        weights: Mapping[str, float] | None = None,
        service: TenantService | None = None,
        floor: Floor | None = None,
        *,
        input_cost: float = 1.0,
        output_cost: float = 2.0,
    ) -> None:
        self._weights = {t: _positive(f"weight of tenant {t}", w) for t, w in (weights or {}).items()}
        self._input_cost = _positive("input_cost", input_cost)
        self._output_cost = _positive("output_cost", output_cost)
        self._service = TenantService() if service is None else service
        self._counters = self._service.counters
        # Of the active: counter, since when it stands there (equal ones alternate), tenant.
        self._order: Ranking[tuple[float, int, str]] = Ranking()
        self._entries: dict[str, tuple[float, int, str]] = {}
        self._serial = 0
        # Active tenants whose counters have changed since they were sorted, in the order of the changes: they
        # may wait in many queues, and are charged more often than most queues are looked at.
        self._changed: dict[str, None] = {}
        self._floor = Floor() if floor is None else floor
        self._floor.join(self)
        self._sweep_at = _MOST_IDLE
        # Of the active together.
        self.active_weight = 0.0

    def weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)

    def counter(self, tenant: str) -> float:
        """Service that a tenant was charged, and lifted by, in weighted tokens. A tenant not known stands at
        the floor."""
        counter = self._counters.get(tenant)
        return self.floor if counter is None else counter

    @property
    def floor(self) -> float:
        """Counter to which a tenant is lifted when it becomes active."""
        least = self._floor.counter()
        return self._counters.get(self._floor.last_left, 0.0) if least is None else least

    @property
    def least(self) -> float | None:
        """The smallest counter of the active; None when none is."""
        self._sort_changed()
        return self._order.first()[0] if self._entries else None

    def enter(self, tenant: str, *, is_lifted: bool = True) -> None:
        """Add a tenant that has requests waiting, and had none; it is not lifted if it never ceased to want
        to be served."""
        counter = self.counter(tenant)
        was_idle = not (self._service.is_active(tenant) or self._service.take_restored(tenant))
        self._service.set(tenant, max(counter, self.floor) if is_lifted and was_idle else counter)
        self.active_weight += self.weight(tenant)
        self._sort_changed()
        self._sort_in(tenant)
        self._service.enter(tenant, self)

    def leave(self, tenant: str) -> None:
        """Remove a tenant that has no request waiting any more. Raises KeyError if it had none before."""
        self._order.remove(self._entries.pop(tenant))
        self._changed.pop(tenant, None)
        self._service.leave(tenant, self)
        self.active_weight = self.active_weight - self.weight(tenant) if self._entries else 0.0
        self._floor.last_left = tenant
        if len(self._counters) - len(self._entries) >= self._sweep_at:
            self._sweep()

    def charge(self, tenant: str, input_tokens: int, output_tokens: int) -> None:
        """Tokens have been, or are now to be, computed for it. It need not be active."""
        cost = input_tokens * self._input_cost + output_tokens * self._output_cost
        if cost <= 0:
            return
        self._service.charge(tenant, self.counter(tenant), cost / self.weight(tenant))

    def sort(self, tenant: str) -> None:
        """Its counter has changed."""
        if tenant in self._entries:
            self._changed.pop(tenant, None)
            self._changed[tenant] = None

    def first(self) -> str | None:
        """The tenant to serve next; None when none is active."""
        self._sort_changed()
        return self._order.first()[2] if self._entries else None

    def position(self, tenant: str) -> int:
        """Number of active tenants that have been served less than it, or as much and earlier."""
        self._sort_changed()
        as_newcomer = (self.counter(tenant), self._serial + 1, tenant)
        return self._order.position(self._entries.get(tenant, as_newcomer))

    def _sort_changed(self) -> None:
        for tenant in self._changed:
            self._order.remove(self._entries[tenant])
            self._sort_in(tenant)
        self._changed.clear()

    def _sort_in(self, tenant: str) -> None:
        self._serial += 1
        entry = (self._counters[tenant], self._serial, tenant)
        self._entries[tenant] = entry
        self._order.add(entry)

    def _sweep(self) -> None:
        """Forget idle tenants that would be lifted anyway: there may be any number of names."""
        floor = self.floor
        kept = self._entries.keys() | {self._floor.last_left}
        for tenant in [t for t, c in self._counters.items() if c <= floor and t not in kept]:
            if not self._service.is_active(tenant):
                del self._counters[tenant]
        self._sweep_at = 2 * (len(self._counters) - len(self._entries)) + _MOST_IDLE


def _positive(name: str, number: float) -> float:
    if not 0 < number < inf:
        raise ValueError(f"{name}: {number!r} is not a positive number")
    return number
