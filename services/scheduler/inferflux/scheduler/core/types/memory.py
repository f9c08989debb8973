"""Memory of entries that are kept for a while (pure)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, ItemsView
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The latest `limit` entries by key."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        return self._entries.get(key)

    def pop(self, key: K) -> V | None:
        return self._entries.pop(key, None)

    def remember(self, key: K, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)

    def items(self) -> ItemsView[K, V]:
        """All, the oldest first."""
        return self._entries.items()

    def oldest(self) -> tuple[K, V] | None:
        """The entry that has been here longest."""
        return next(iter(self._entries.items()), None)
