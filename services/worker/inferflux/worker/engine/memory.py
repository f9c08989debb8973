"""Where the computed part of each sequence is: in the KV cache, in host memory, or discarded.

The memory alone hands out llama.cpp's sequence ids. A sequence has one while it is in the cache, running or
parked. What the prefill context computes has its cells counted in the main context as well: it is there when
it is complete.
"""

from __future__ import annotations

from typing import Protocol

from .kv import CellLedger
from .saved import SavedStates, StateCache
from .sequence import NO_SEQ_ID, Sequence


class Cache(StateCache, Protocol):
    """What of the backend moves sequences in and out of the KV cache."""

    @property
    def cells(self) -> int: ...

    @property
    def sequences(self) -> int: ...

    @property
    def prefill_cells(self) -> int: ...

    def forget_prefill(self, seq_id: int) -> None: ...

    def forget(self, seq_id: int) -> None: ...


class Memory:
    """Sequence ids, KV cells and saved state of every resident sequence.

    Args:
        cache: the KV cache.
        saved: what is not in it; what has no room there is computed again.
    """

    def __init__(self, cache: Cache, saved: SavedStates) -> None:
        self._cache = cache
        self._saved = saved
        self._ledger = CellLedger(cache.cells)
        self._prefill = CellLedger(cache.prefill_cells)
        self._free_seq_ids = list(range(cache.sequences - 1, -1, -1))
        self._swap_outs = self._swap_ins = self._recomputes = 0

    @property
    def cells(self) -> int:
        return self._ledger.cells

    @property
    def free(self) -> int:
        return self._ledger.free

    @property
    def free_seq_ids(self) -> int:
        """How many more sequences the cache may hold."""
        return len(self._free_seq_ids)

    @property
    def used(self) -> int:
        return self._ledger.used

    @property
    def prefill_room(self) -> int:
        """Tokens that the prefill context has room for."""
        return self._prefill.free

    def take_counts(self) -> tuple[int, int, int]:
        """States moved to host memory, moved back, and discarded, since the last call."""
        counts = self._swap_outs, self._swap_ins, self._recomputes
        self._swap_outs = self._swap_ins = self._recomputes = 0
        return counts

    def grow(self, sequence: Sequence, tokens: int) -> None:
        """Count the cells of the next `tokens` of a loaded sequence.

        Raises:
            OutOfCells: the step would not fit.
        """
        self._ledger.use(sequence.seq_id, tokens)

    def begin_prefill_context(self, sequence: Sequence) -> None:
        """Have the prefill context go on with a loaded sequence.

        Raises:
            OutOfCells: it has too little room for all its tokens.
        """
        self._prefill.use(sequence.seq_id, sequence.n_tokens)
        sequence.in_prefill_context = True

    def end_prefill_context(self, sequence: Sequence) -> None:
        """Have the main context alone go on with `sequence`; nothing if it does already."""
        if sequence.in_prefill_context:
            self._cache.forget_prefill(sequence.seq_id)
            self._prefill.release(sequence.seq_id)
            sequence.in_prefill_context = False

    def load(self, sequence: Sequence) -> bool:
        """Bring a sequence into the cache; its cells and a sequence id must be free.

        Returns:
            Whether it could go on where it was; if not, all of it is to be computed again.
        """
        sequence.seq_id = self._free_seq_ids.pop()
        if sequence.state is None:
            return True
        is_own = sequence.restored_from is None
        if self._saved.restore(sequence):
            self._ledger.use(sequence.seq_id, sequence.position)
            self._swap_ins += is_own
            return True
        self._discard(sequence)
        return False

    def look_up(self, sequence: Sequence) -> None:
        """Find what of a sequence that is not loaded can be restored, and fetch it."""
        self._saved.look_up(sequence)

    def unload(self, sequence: Sequence) -> list[Sequence]:
        """Take a sequence out of the cache, its state to host memory if there is room for it.

        Returns:
            Whose state was discarded for lack of host memory; itself among them, maybe.
        """
        discarded: list[Sequence] = []
        if sequence.is_loaded and sequence.position:
            discarded = self._save(sequence)
        self._empty(sequence)
        return discarded

    def remove(self, sequence: Sequence) -> None:
        """Free everything of `sequence`, which leaves."""
        self._empty(sequence)
        self._saved.leave(sequence)

    def _save(self, sequence: Sequence) -> list[Sequence]:
        losers = self._saved.save(sequence)
        if losers is None:
            self._discard(sequence)
            return [sequence]
        for loser in losers:
            self._discard(loser)
        self._swap_outs += 1
        return losers

    def _discard(self, sequence: Sequence) -> None:
        sequence.discard()
        self._recomputes += 1

    def _empty(self, sequence: Sequence) -> None:
        if sequence.is_loaded:
            self._cache.forget(sequence.seq_id)
            self._ledger.release(sequence.seq_id)
            self.end_prefill_context(sequence)
            self._free_seq_ids.append(sequence.seq_id)
            sequence.seq_id = NO_SEQ_ID
