"""A bounded number of places: their holders, and which of them gives way. Pure: times are passed in."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Holder = TypeVar("Holder", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Victim(Generic[Holder]):
    """The holder that gives way.

    Attributes:
        at: when, in seconds of the caller's clock; a time that is past means now.
    """

    holder: Holder
    at: float


class FairPlaces(Generic[Holder]):
    """The taken places, by the owner of their holders.

    An owner with clearly fewer places gets the oldest place of the owner with most, once that was held for
    `hold_s`. Among owners
    with about as many places, the oldest holder keeps its place for a grace.

    Args:
        grace_s: in seconds.
        hold_s: in seconds, no longer than the grace.
    """

    def __init__(self, *, grace_s: float, hold_s: float = 0.0) -> None:
        self._grace_s = grace_s
        self._hold_s = hold_s
        # Owner -> its holders, oldest first, and since when.
        self._taken: dict[Hashable, dict[Holder, float]] = {}

    def __len__(self) -> int:
        return sum(len(holders) for holders in self._taken.values())

    def count(self, owner: Hashable) -> int:
        """Places that an owner has."""
        return len(self._taken.get(owner, ()))

    def take(self, owner: Hashable, holder: Holder, now: float) -> None:
        self._taken.setdefault(owner, {})[holder] = now

    def give_back(self, owner: Hashable, holder: Holder) -> bool:
        """Returns whether the holder still had its place."""
        holders = self._taken.get(owner, {})
        had_it = holders.pop(holder, None) is not None
        if not holders:
            self._taken.pop(owner, None)
        return had_it

    def victim(self, newcomer: Hashable) -> Victim[Holder]:
        """The holder that gives way to one of this owner, and when; its place is still taken.

        Raises:
            ValueError: no place is taken.
        """
        owner = self._largest()
        holder, since = next(iter(self._taken[owner].items()))
        # One place more is no reason: two owners would displace each other in turn.
        is_unfair = self.count(owner) > self.count(newcomer) + 1
        return Victim(holder, since + (self._hold_s if is_unfair else self._grace_s))

    def _largest(self) -> Hashable:
        """The owner with most places; of several the one whose place is the oldest."""
        return max(self._taken, key=self._displacement_key)

    def _displacement_key(self, owner: Hashable) -> tuple[int, float]:
        holders = self._taken[owner]
        return len(holders), -next(iter(holders.values()))
