"""Account of the cells that sequences fill in the unified KV cache, a shared cell counted once (pure).

In a unified cache every token of every sequence takes one cell, so the account is exact: a batch of
n tokens needs n free cells, and one that is submitted with fewer would be refused.

Sequences begin at position 0 and share cells from there on. So their cells form a tree of runs: each run
has the cells of some positions, and an owner for each sequence that goes through it. A run without owners is
free.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


class OutOfCells(Exception):
    """More cells are wanted than are free."""


@dataclass(slots=True, eq=False)
class _Run:
    """The cells of positions `start` up to `end`.

    Attributes:
        before: the run with the positions before `start`; None at 0.
        owners: sequences that hold these cells.
        residents: owners that are requests; the others are cached prefixes.
    """

    before: _Run | None
    start: int
    end: int
    owners: int
    residents: int

    @property
    def cells(self) -> int:
        return self.end - self.start


class CellLedger:
    """The owners of each cell, by sequence id.

    Args:
        cells: cells of the cache.

    Attributes:
        used: cells that any sequence holds.
        held: cells that a request holds; the other used ones are cached.
        shared: cells that several sequences hold.
        high_water: most cells that were used at once.
        width: cells up to the highest that may be filled: the most that were used at once since all were
            empty or were moved together. llama.cpp fills the lowest empty cells first.
    """

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self.used = self.held = self.shared = self.high_water = self.width = 0
        # The last run of each sequence that holds cells.
        self._last: dict[int, _Run] = {}
        self._cached: set[int] = set()

    @property
    def free(self) -> int:
        return self.cells - self.used

    @property
    def cached(self) -> int:
        """Cells that cached prefixes alone hold."""
        return self.used - self.held

    def cells_of(self, seq_id: int) -> int:
        """Cells that a sequence holds, alone or with others."""
        run = self._last.get(seq_id)
        return run.end if run else 0

    def use(self, seq_id: int, cells: int) -> None:
        """Count `cells` more as filled by the request with `seq_id`.

        Raises:
            OutOfCells: fewer are free.
        """
        if cells > self.free:
            raise OutOfCells(f"{cells} KV cells wanted for seq_id {seq_id}, {self.free} of {self.cells} free")
        if cells == 0:
            return
        run = self._last.get(seq_id)
        if run is not None and run.owners == 1:
            run.end += cells
        else:
            start = run.end if run else 0
            self._last[seq_id] = _Run(run, start, start + cells, owners=1, residents=1)
        self.used += cells
        self.held += cells
        self.high_water = max(self.high_water, self.used)
        self.width = max(self.width, self.used)

    def move_together(self) -> None:
        """The filled cells lie without a hole now."""
        self.width = self.used

    def share(self, source: int, seq_id: int, cells: int) -> None:
        """Have the request with `seq_id`, which holds nothing, hold the first `cells` of `source` as well.

        Raises:
            ValueError: it holds something, or `source` has fewer.
        """
        if seq_id in self._last or not 0 < cells <= self.cells_of(source):
            raise ValueError(f"{cells} cells of seq_id {source} cannot be shared with seq_id {seq_id}")
        shared = self._run_up_to(source, cells)
        self._last[seq_id] = shared
        for run in _runs(shared):
            run.owners += 1
            self.shared += run.cells if run.owners == 2 else 0
            self._count_resident(run)

    def keep(self, seq_id: int) -> None:
        """The request with `seq_id` has ended: its cells are a cached prefix from now on."""
        self._cached.add(seq_id)
        for run in _runs(self._last.get(seq_id)):
            self._discount_resident(run)

    def cut(self, seq_id: int, cells: int) -> None:
        """Have a sequence hold only the first `cells` of what it holds.

        Raises:
            ValueError: it holds fewer.
        """
        if not 0 < cells <= self.cells_of(seq_id):
            raise ValueError(f"seq_id {seq_id} does not hold {cells} cells")
        kept = self._run_up_to(seq_id, cells)
        for run in _runs(self._last[seq_id]):
            if run is kept:
                break
            self._disown(run, seq_id)
        self._last[seq_id] = kept

    def release(self, seq_id: int) -> None:
        """Have a sequence hold nothing; nothing changes if it does not."""
        for run in _runs(self._last.pop(seq_id, None)):
            self._disown(run, seq_id)
        self._cached.discard(seq_id)

    def _run_up_to(self, seq_id: int, cells: int) -> _Run:
        """The run of a sequence that ends with its first `cells`; one is divided if need be."""
        for run in _runs(self._last[seq_id]):
            if run.start < cells:
                break
        if run.end == cells:
            return run
        upper = _Run(run.before, run.start, cells, run.owners, run.residents)
        run.before, run.start = upper, cells
        return upper

    def _disown(self, run: _Run, seq_id: int) -> None:
        run.owners -= 1
        if run.owners == 1:
            self.shared -= run.cells
        elif run.owners == 0:
            self.used -= run.cells
            self.width = self.width if self.used else 0
        if seq_id not in self._cached:
            self._discount_resident(run)

    def _count_resident(self, run: _Run) -> None:
        run.residents += 1
        if run.residents == 1:
            self.held += run.cells

    def _discount_resident(self, run: _Run) -> None:
        run.residents -= 1
        if run.residents == 0:
            self.held -= run.cells

    def trial(self) -> Release:
        """Find out what would be free if some requests released their cells."""
        return Release(self._last)


class Release:
    """Cells that requests would free, one after the other; a shared cell is freed by the last of them.

    Cells that stay cached count as free: they are evicted before any request is.
    """

    def __init__(self, last: dict[int, _Run]) -> None:
        self._last = last
        self._released: dict[_Run, int] = {}

    def release(self, seq_id: int) -> int:
        """Cells that are free once this request has released its own as well."""
        freed = 0
        for run in _runs(self._last.get(seq_id)):
            released = self._released[run] = self._released.get(run, 0) + 1
            if released == run.residents:
                freed += run.cells
        return freed


def _runs(last: _Run | None) -> Iterator[_Run]:
    """The runs of a sequence, the last one first."""
    while last is not None:
        yield last
        last = last.before
