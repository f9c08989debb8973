"""Choice of the scheduler that should lead each partition (pure).

Every scheduler publishes now and then that it lives. All that live are given a weight for a partition by a
hash of both names, and the one of the highest weight is to lead it: rendezvous hashing (Thaler and
Ravishankar, "Using name-based mappings to increase hit rates", 1998). When a scheduler joins or leaves, only
the partitions move that it gets or had.

This is advice alone: the lease of a partition decides who leads it. Two schedulers that see different members
ask for the same lease, and one gets it.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

# A scheduler is gone that was silent for this many of the intervals that it publishes at.
_MISSED = 3
# Names that are kept: a partition has one owner, and there are no more than 64 of these.
_MOST = 256
# Who has just started, or was cut off, listens for this many intervals before it counts on what it received.
_LISTENS = 2
# A leader gives a partition back once another scheduler has been its owner for this many leases: one that
# comes and goes moves nothing.
_STEADY_LEASES = 2
# From then on it claims it again only if the other one has not taken it.
_PAUSE_LEASES = 3


@lru_cache(maxsize=4096)
def owner_of(partition: str, schedulers: tuple[str, ...]) -> str:
    """The scheduler that is to lead a partition; "" without any."""
    return max(schedulers, key=lambda name: (_weight(partition, name), name), default="")


def _weight(partition: str, scheduler: str) -> bytes:
    return hashlib.blake2b(f"{partition} {scheduler}".encode(), digest_size=8).digest()


class Members:
    """The schedulers that live, as one of them sees it.

    Args:
        name: this one's; it lives.
        interval_s: how often each publishes that it lives.
    """

    def __init__(self, name: str, interval_s: float, now: float) -> None:
        self._name = name
        self._interval_s = interval_s
        self._seen_s: dict[str, float] = {}
        self._listens_until_s = now + _LISTENS * interval_s

    def on_alive(self, name: str, now: float) -> None:
        """A scheduler has published that it lives. Beyond `_MOST` of them a new one is ignored."""
        if name in self._seen_s or len(self._seen_s) < _MOST:
            self._seen_s[name] = now

    def on_left(self, name: str) -> None:
        """Take in that a member has published that it leaves."""
        self._seen_s.pop(name, None)

    def on_reconnect(self, now: float) -> None:
        """Take in that nothing was received for a while: silence until now says nothing."""
        self._listens_until_s = now + _LISTENS * self._interval_s
        self._seen_s = dict.fromkeys(self._seen_s, now)

    def live(self, now: float) -> tuple[str, ...]:
        """Names of those that live, this one among them, in order."""
        oldest_s = now - _MISSED * self._interval_s
        self._seen_s = {name: at for name, at in self._seen_s.items() if at >= oldest_s}
        return tuple(sorted({self._name, *self._seen_s}))

    def is_owner(self, partition: str, now: float) -> bool:
        """True if this scheduler is to lead a partition. Until it has listened for a while, it is not sure of
        any."""
        return now >= self._listens_until_s and owner_of(partition, self.live(now)) == self._name

    def has_better_owner(self, partition: str, now: float) -> bool:
        """True if another scheduler that lives is to lead it."""
        return now >= self._listens_until_s and owner_of(partition, self.live(now)) != self._name


class Handover:
    """Times at which a leader gives partitions back to the schedulers that are to lead them.

    Args:
        lease_s: how long a lease stands that is not renewed.
    """

    def __init__(self, lease_s: float) -> None:
        self._steady_s = _STEADY_LEASES * lease_s
        # For how long it claims nothing of what it has given back.
        self.pause_s = _PAUSE_LEASES * lease_s
        # Since when another scheduler should lead what this one leads.
        self._outweighed_s: dict[str, float] = {}

    def is_due(self, partition: str, now: float, *, is_outweighed: bool) -> bool:
        """True if a partition is to be given back now.

        Args:
            is_outweighed: this scheduler leads it, and another one that lives is to.
        """
        if not is_outweighed:
            self._outweighed_s.pop(partition, None)
            return False
        if now - self._outweighed_s.setdefault(partition, now) < self._steady_s:
            return False
        del self._outweighed_s[partition]
        return True
