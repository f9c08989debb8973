"""Sequence ids and their KV cells: the ledger, the free ids and llama.cpp's cache are changed together."""

from __future__ import annotations

from typing import Protocol

from .kv import CellLedger


class CellCache(Protocol):
    """Interface of the backend that frees and shares KV cells."""

    @property
    def cells(self) -> int: ...

    @property
    def sequences(self) -> int: ...

    def forget(self, seq_id: int, position: int = 0) -> None: ...

    def share(self, source: int, seq_id: int, cells: int) -> None: ...

    def positions(self, seq_id: int) -> tuple[int, int]: ...


class SeqIds:
    """Hands sequence ids out, and takes them back with their cells.

    Attributes:
        ledger: which sequence fills which cells.
    """

    def __init__(self, cache: CellCache) -> None:
        self._cache = cache
        self.ledger = CellLedger(cache.cells)
        self._free = list(range(cache.sequences - 1, -1, -1))

    @property
    def n_free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """A free id; there must be one."""
        return self._free.pop()

    def positions(self, seq_id: int) -> tuple[int, int]:
        """The first and the last position that an id holds in every layer; -1 for none."""
        return self._cache.positions(seq_id)

    def give_back(self, seq_id: int) -> None:
        """Free an id, and the cells that it alone holds."""
        self._cache.forget(seq_id)
        self.ledger.release(seq_id)
        self._free.append(seq_id)

    def cut(self, seq_id: int, cells: int) -> None:
        """Have an id hold its first `cells` alone."""
        self._cache.forget(seq_id, cells)
        self.ledger.cut(seq_id, cells)

    def share(self, source: int, seq_id: int, cells: int) -> None:
        """Have `seq_id`, which holds nothing, hold the first `cells` of `source` as well."""
        self._cache.share(source, seq_id, cells)
        self.ledger.share(source, seq_id, cells)
