"""Who holds how many cells of the unified KV cache.

In a unified cache every token of every sequence takes one cell, so the account is exact: a batch of
n tokens needs n free cells. A sequence reserves all it may ever need when it is taken up, so no step
can find the cache full.
"""

from __future__ import annotations


class OutOfCells(Exception):
    """The reservation does not fit."""


class CellLedger:
    """Reserved and used cells per sequence slot.

    Args:
        cells: cells of the cache.
    """

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self._reserved: dict[int, int] = {}
        self._used: dict[int, int] = {}

    @property
    def reserved(self) -> int:
        return sum(self._reserved.values())

    @property
    def used(self) -> int:
        return sum(self._used.values())

    @property
    def free(self) -> int:
        """Cells nobody has reserved."""
        return self.cells - self.reserved

    def reserve(self, slot: int, cells: int) -> None:
        """Set `cells` aside for `slot`.

        Raises:
            OutOfCells: fewer are free.
            ValueError: the slot has a reservation already.
        """
        if slot in self._reserved:
            raise ValueError(f"slot {slot} is taken")
        if cells > self.free:
            raise OutOfCells(f"{cells} KV cells wanted, {self.free} of {self.cells} free")
        self._reserved[slot] = cells
        self._used[slot] = 0

    def use(self, slot: int, cells: int) -> None:
        """Count `cells` more as filled by `slot`.

        Raises:
            OutOfCells: more than it reserved.
        """
        used = self._used[slot] + cells
        if used > self._reserved[slot]:
            raise OutOfCells(f"slot {slot} would use {used} of {self._reserved[slot]} reserved KV cells")
        self._used[slot] = used

    def release(self, slot: int) -> None:
        """Give everything of `slot` back; nothing if it holds nothing."""
        self._reserved.pop(slot, None)
        self._used.pop(slot, None)
