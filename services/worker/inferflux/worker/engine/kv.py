"""Who fills how many cells of the unified KV cache.

In a unified cache every token of every sequence takes one cell, so the account is exact: a batch of
n tokens needs n free cells, and one that is submitted with fewer would be refused.
"""

from __future__ import annotations


class OutOfCells(Exception):
    """More cells are wanted than are free."""


class CellLedger:
    """Filled cells per sequence id.

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

    def use(self, seq_id: int, cells: int) -> None:
        """Count `cells` more as filled by `seq_id`.

        Raises:
            OutOfCells: fewer are free.
        """
        if cells > self.free:
            raise OutOfCells(f"{cells} KV cells wanted for seq_id {seq_id}, {self.free} of {self.cells} free")
        self._used[seq_id] = self._used.get(seq_id, 0) + cells
        self.used += cells

    def release(self, seq_id: int) -> None:
        """Count everything of `seq_id` as free; nothing if it fills nothing."""
        self.used -= self._used.pop(seq_id, 0)
