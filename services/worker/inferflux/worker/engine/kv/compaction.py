"""Compaction: the times at which filled KV cells are moved down, so that no hole is left between them (pure).

A step goes through all cells up to the highest filled one. So holes below it cost time in every step, and a
move costs time once. What holes have cost since the last move is added up. When the sum reaches what a move
takes, the cells are moved. So at most twice the time is lost that would be lost if the future was known: the
ski-rental rule.

How wide the filled cells lie is not known, only the most that it can be. So holes count only where they may
be more than half of the width: as use rises and falls a little, the highest cells empty by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferflux.worker.files.fit import whole_cells


@dataclass(frozen=True, slots=True)
class MoveCost:
    """Seconds that a move takes: some whatever is moved, and some for each filled cell."""

    fixed_s: float
    cell_s: float

    def of(self, cells: int) -> float:
        """Seconds that a move of these filled cells takes."""
        return self.fixed_s + self.cell_s * cells


class Compaction:
    """Adds up what holes cost.

    Args:
        cell_s: seconds that a cell costs a token of a step; 0 where it costs nothing.
        cost: as moves were timed; None: cells cannot be moved.
        longest_s: a move that takes longer is never due: sequences that decode wait for it.
    """

    def __init__(self, cell_s: float, cost: MoveCost | None, longest_s: float) -> None:
        self._cell_s = cell_s
        self._cost = cost
        self._longest_s = longest_s
        # What the latest move took, in parts of what was expected first.
        self._scale = 1.0
        self._lost_s = 0.0

    def is_due(self, rows: int, *, width: int, used: int) -> bool:
        """True if cells are to be moved now, after a step that decoded `rows` tokens.

        Args:
            width: cells up to the highest that may be filled.
            used: filled cells.
        """
        needed = whole_cells(used + rows)
        too_many = whole_cells(width) - needed
        if self._cost is None or too_many <= needed:
            return False
        self._lost_s += too_many * rows * self._cell_s
        return self._scale * self._cost.of(used) <= min(self._lost_s, self._longest_s)

    def moved(self, cells: int, seconds: float) -> None:
        """The filled cells were moved, and there are no holes now."""
        expected_s = self._cost.of(cells) if self._cost else 0.0
        self._scale = seconds / expected_s if expected_s else 1.0
        self._lost_s = 0.0
