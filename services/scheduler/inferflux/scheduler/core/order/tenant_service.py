"""Service that each tenant has had, of all models together (pure).

The counters of `TenantShares`. A leader writes them down now and then, and the next leader reads them. A
leader of another partition publishes sums that only grow, from 0 at the beginning of its term. So a message
that is lost or repeated changes nothing in the end: the next one has it all. Messages of one leader come in
their order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .shares import TenantShares

# Tenants that are written down: those that were served most.
MOST_TENANTS = 4096
# More tokens than any tenant is ever served; a float still counts by one there.
HIGHEST = 2.0**53
# Tenants of which the sums are kept, of one partition: those of the latest message are in any case.
_MOST_KEPT = 16_384


class TenantService:
    """Counters by tenant, in weighted tokens, and the queues that order tenants by them."""

    def __init__(self) -> None:
        self.counters: dict[str, float] = {}
        # By tenant, the queues in which it has requests waiting: few of what may be hundreds.
        self._waiting: dict[str, list[TenantShares]] = {}
        # Tenants of which an earlier leader knew, until they have requests waiting here.
        self._restored: set[str] = set()
        # What this leader has served, by tenant: only ever added to.
        self.served: dict[str, float] = {}

    def enter(self, tenant: str, queue: TenantShares) -> None:
        """Count a queue in which a tenant has requests waiting, and had none."""
        self._waiting.setdefault(tenant, []).append(queue)

    def leave(self, tenant: str, queue: TenantShares) -> None:
        """Count a queue less in which a tenant has requests waiting. Raises KeyError or ValueError if it had
        none before."""
        queues = self._waiting[tenant]
        queues.remove(queue)
        if not queues:
            del self._waiting[tenant]

    def set(self, tenant: str, counter: float) -> None:
        """Every queue in which the tenant has requests waiting sorts it anew."""
        self.counters[tenant] = counter
        for queue in self._waiting.get(tenant, ()):
            queue.sort(tenant)

    def charge(self, tenant: str, counter: float, cost: float) -> None:
        """The tenant, whose counter was this, is served here."""
        self.set(tenant, counter + cost)
        self.served[tenant] = self.served.get(tenant, 0.0) + cost
        if len(self.served) > 2 * MOST_TENANTS:
            self.served = self.most_served()

    def most_served(self) -> dict[str, float]:
        """Service, in weighted tokens, of the tenants that were served most here. The others may begin anew
        from 0."""
        most = sorted(self.served.items(), key=lambda entry: -entry[1])[:MOST_TENANTS]
        return dict(most)

    def charge_elsewhere(self, served: Mapping[str, float]) -> None:
        """Leaders of other partitions have served tenants, by these weighted tokens."""
        floor = self._floor()
        for tenant, cost in served.items():
            self.set(tenant, self.counters.get(tenant, floor) + cost)

    def take_restored(self, tenant: str) -> bool:
        """True if its counter is that of an earlier leader, under whom it may have had requests waiting."""
        is_restored = tenant in self._restored
        self._restored.discard(tenant)
        return is_restored

    def is_active(self, tenant: str) -> bool:
        """True if it has requests waiting in any queue."""
        return tenant in self._waiting

    def encode(self) -> bytes:
        """Return the JSON that is written down: how much more each tenant was served than the least served of
        those that have requests waiting. Idle tenants have no credit."""
        floor = self._floor()
        most = sorted(self.counters.items(), key=lambda entry: -entry[1])[:MOST_TENANTS]
        return json.dumps({tenant: round(max(0.0, counter - floor), 3) for tenant, counter in most}).encode()

    def _floor(self) -> float:
        active = [self.counters[tenant] for tenant in self._waiting]
        return min(active or self.counters.values(), default=0.0)

    def restore(self, written: bytes) -> None:
        """Add what an earlier leader wrote down to what was served here meanwhile. What cannot be read is
        ignored."""
        try:
            counters = json.loads(written)
        except (ValueError, ArithmeticError, RecursionError):
            return
        if isinstance(counters, Mapping):
            for tenant, counter in list(counters.items())[:MOST_TENANTS]:
                if isinstance(counter, int | float) and 0 <= counter < HIGHEST:
                    self.set(tenant, self.counters.get(tenant, 0.0) + counter)
                    if not self.is_active(tenant):
                        self._restored.add(tenant)


@dataclass(frozen=True, slots=True)
class _Sums:
    term: int
    served: Mapping[str, float]


class ServedElsewhere:
    """The latest sums of each other partition."""

    def __init__(self) -> None:
        self._latest: dict[str, _Sums] = {}

    def take(self, partition: str, term: int, served: Mapping[str, float]) -> dict[str, float]:
        """The leader of a partition publishes its sums. Returns by tenant what is to be counted now.

        The first one received of a partition counts nothing: what the last leader here left has counted it.
        A sum that is smaller than before has begun anew.
        """
        before = self._latest.get(partition)
        if before is not None and term < before.term:
            return {}
        known = before.served if before is not None and before.term == term else {}
        merged = {**known, **served}
        self._latest[partition] = _Sums(term, merged if len(merged) <= _MOST_KEPT else dict(served))
        if before is None:
            return {}
        return {t: cost for t, total in served.items() if (cost := _grown(total, known.get(t, 0.0))) > 0}


def _grown(total: float, before: float) -> float:
    return total - before if total >= before else total
