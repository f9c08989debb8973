"""Where the computed part of each sequence is: in the KV cache, in host memory, or discarded.

The memory alone hands out llama.cpp's sequence ids. A sequence has one while it is in the cache, running or
parked. What the prefill context computes has its cells counted in the main context as well: it is there when
it is complete.
"""

from __future__ import annotations

from typing import Protocol

from .kv import CellLedger
from .sequence import NO_SEQ_ID, Sequence
from .state import StateBytes
from .swap import SwapSpace


class Cache(Protocol):
    """What of the backend moves sequences in and out of the KV cache."""

    @property
    def cells(self) -> int: ...

    @property
    def sequences(self) -> int: ...

    @property
    def prefill_cells(self) -> int: ...

    def forget_prefill(self, seq_id: int) -> None: ...

    def forget(self, seq_id: int) -> None: ...

    def state_size(self, seq_id: int) -> int: ...

    def copy_out(self, seq_id: int, n_bytes: int) -> StateBytes | None: ...

    def copy_in(self, seq_id: int, state: StateBytes) -> bool: ...


class Memory:
    """Sequence ids, KV cells and host memory of every resident sequence.

    Args:
        cache: the KV cache.
        swap_bytes: most host memory; where it does not do, sequences are computed again.
    """

    def __init__(self, cache: Cache, swap_bytes: int) -> None:
        self._cache = cache
        self._ledger = CellLedger(cache.cells)
        self._prefill = CellLedger(cache.prefill_cells)
        self._space: SwapSpace[Sequence] = SwapSpace(swap_bytes)
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

    @property
    def swap_bytes_used(self) -> int:
        return self._space.used

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
        state = sequence.state
        if state is None:
            return True
        self._drop_state(sequence)
        if self._cache.copy_in(sequence.seq_id, state):
            self._ledger.use(sequence.seq_id, sequence.position)
            self._swap_ins += 1
            return True
        self._discard(sequence)
        return False

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
        self._drop_state(sequence)

    def _save(self, sequence: Sequence) -> list[Sequence]:
        n_bytes = self._cache.state_size(sequence.seq_id)
        losers = self._space.losers(sequence, n_bytes) if n_bytes else None
        state = self._cache.copy_out(sequence.seq_id, n_bytes) if losers is not None else None
        if losers is None or state is None:
            self._discard(sequence)
            return [sequence]
        for loser in losers:
            self._drop_state(loser)
            self._discard(loser)
        self._space.hold(sequence, n_bytes)
        sequence.state = state
        self._swap_outs += 1
        return losers

    def _discard(self, sequence: Sequence) -> None:
        sequence.discard()
        self._recomputes += 1

    def _drop_state(self, sequence: Sequence) -> None:
        sequence.state = None
        self._space.release(sequence)

    def _empty(self, sequence: Sequence) -> None:
        if sequence.is_loaded:
            self._cache.forget(sequence.seq_id)
            self._ledger.release(sequence.seq_id)
            self.end_prefill_context(sequence)
            self._free_seq_ids.append(sequence.seq_id)
            sequence.seq_id = NO_SEQ_ID
