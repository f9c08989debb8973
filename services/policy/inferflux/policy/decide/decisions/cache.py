"""Decisions that are remembered for a short time. No clock: the time is passed in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from .facts import Decision

MAX_ENTRIES = 4096


class DecisionCache:
    """At most `MAX_ENTRIES` decisions; the one that was used longest ago goes first.

    Args:
        ttl_s: how long one holds; 0: none is kept.
    """

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        # With the time at which each was made.
        self._made: OrderedDict[Hashable, tuple[float, Decision]] = OrderedDict()

    def get(self, key: Hashable, now_s: float) -> Decision | None:
        """The decision, unless there is none or it is too old.

        Args:
            now_s: monotonic.
        """
        found = self._made.get(key)
        if found is None:
            return None
        made_at_s, decision = found
        if now_s - made_at_s >= self._ttl_s:
            del self._made[key]
            return None
        self._made.move_to_end(key)
        return decision

    def put(self, key: Hashable, decision: Decision, now_s: float) -> None:
        """Keep a decision on what was asked at `now_s`."""
        if not self._ttl_s:
            return
        self._made[key] = (now_s, decision)
        self._made.move_to_end(key)
        if len(self._made) > MAX_ENTRIES:
            self._made.popitem(last=False)

    def clear(self) -> None:
        self._made.clear()
