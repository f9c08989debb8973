"""Check that llama.cpp has the cells that the ledger counts, and the times of that check (pure)."""

from __future__ import annotations

from dataclasses import dataclass

# While requests run, the ledger is checked this often. An engine that becomes idle checks it at once.
_INTERVAL_S = 10.0


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between the cells of a sequence id in llama.cpp's own view and in the ledger.

    Attributes:
        counted: cells, of the positions from 0 on.
        first, last: positions; -1: llama.cpp has none.
    """

    seq_id: int
    counted: int
    first: int
    last: int

    def __str__(self) -> str:
        has = f"has positions {self.first} to {self.last}" if self.last >= 0 else "has none"
        return f"{self.counted} cells were counted for seq_id {self.seq_id}, llama.cpp {has}"


def difference(
    seq_id: int,
    counted: int,
    positions: tuple[int, int],
    *,
    holds_all: bool,
    last_wanted: int | None = None,
) -> Difference | None:
    """Return the difference; None if there is none.

    Args:
        positions: the first and the last one by llama.cpp's own view; -1 for none.
        last_wanted: the position of the last cell that is counted; None: each has the position after that of
            the cell before it.
        holds_all: whether the model's memory holds every position, and not only the last ones.
    """
    first, last = positions
    is_first_right = first == (0 if counted else -1) or (not holds_all and counted > 0)
    if last == (counted - 1 if last_wanted is None else last_wanted) and is_first_right:
        return None
    return Difference(seq_id, counted, first, last)


class CheckTimes:
    """Times at which the ledger is checked: now and then while steps are made, and once after the last.

    Args:
        now_s: monotonic clock.
    """

    def __init__(self, now_s: float) -> None:
        self._has_stepped = False
        self._checked_s = now_s

    def stepped(self) -> None:
        """A step is over."""
        self._has_stepped = True

    def is_due(self, now_s: float, *, is_idle: bool) -> bool:
        """Return whether to check now; the check counts as done then."""
        if not self._has_stepped or not (is_idle or now_s - self._checked_s >= _INTERVAL_S):
            return False
        self._has_stepped = False
        self._checked_s = now_s
        return True
