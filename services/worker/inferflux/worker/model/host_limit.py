"""Limit of the host memory that an engine may hold KV state in, as its worker knows it (pure)."""

from __future__ import annotations

from collections import deque


class HostLimit:
    """The limits that an engine was given and may still keep to.

    Args:
        n_bytes: that it is started with.
    """

    def __init__(self, n_bytes: int) -> None:
        self._given = deque([n_bytes])

    @property
    def now(self) -> int:
        """Bytes that it was given last."""
        return self._given[-1]

    @property
    def most(self) -> int:
        """Bytes that it may hold until it has taken the last limit."""
        return max(self._given)

    def give(self, n_bytes: int) -> None:
        """It is told another limit now."""
        self._given.append(n_bytes)

    def taken(self, n_bytes: int) -> None:
        """It keeps to a limit that it was given, and to none before that."""
        while n_bytes in self._given and self._given[0] != n_bytes:
            self._given.popleft()

    def died(self) -> None:
        """The next engine is started with the last limit."""
        self._given = deque([self.now])
