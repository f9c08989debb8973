"""Who fills how many cells of the unified KV cache.

In a unified cache every token of every sequence takes one cell, so the account is exact: a batch of
n tokens needs n free cells, and one that is submitted with fewer would be refused.
"""

from __future__ import annotations


class OutOfCells(Exception):
    """More cells are wanted than are free."""


class CellLedger:
    """Filled cells per sequence slot.

    Args:
        cells: cells of the cache.
    """

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self.used = 0
        self._used: dict[int, int] = {}

    @property
    def free(self) -> int:
        return self.cells - self.used

    def use(self, slot: int, cells: int) -> None:
        """Count `cells` more as filled by `slot`.

        Raises:
            OutOfCells: fewer are free.
        """
        if cells > self.free:
            raise OutOfCells(f"{cells} KV cells wanted for slot {slot}, {self.free} of {self.cells} free")
        self._used[slot] = self._used.get(slot, 0) + cells
        self.used += cells

    def release(self, slot: int) -> None:
        """Count everything of `slot` as free; nothing if it fills nothing."""
        self.used -= self._used.pop(slot, 0)

    def move(self, slot: int, to: int) -> None:
        """Count what `slot` fills as filled by `to`.

        Raises:
            ValueError: `to` fills cells of its own.
        """
        if to in self._used:
            raise ValueError(f"slot {to} fills cells of its own")
        if slot in self._used:
            self._used[to] = self._used.pop(slot)
