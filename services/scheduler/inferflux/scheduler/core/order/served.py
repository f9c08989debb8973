"""Service that leaders of other partitions have given tenants since it was last counted here (pure).

A leader publishes sums that only grow, from 0 at the beginning of its term. So a message that is lost or
repeated changes nothing in the end: the next one has it all. Messages of one leader come in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Tenants of which the sums are kept, of one partition: those of the latest message are in any case.
_MOST_KEPT = 16_384


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
