"""Where the computed part of each sequence is: in the KV cache, in host memory, or given up.

What is computed apart has its cells counted in the streams' cache as well: it is there when it is complete.
"""

from __future__ import annotations

from typing import Protocol

from .kv import CellLedger
from .sequence import Sequence
from .state import StateBytes
from .swap import SwapSpace


class Cache(Protocol):
    """What of the backend moves sequences in and out of the KV cache."""

    @property
    def cells(self) -> int: ...

    @property
    def prefill_cells(self) -> int: ...

    def forget_apart(self, slot: int) -> None: ...

    def forget(self, slot: int) -> None: ...

    def move(self, slot: int, to: int) -> None: ...

    def state_size(self, slot: int) -> int: ...

    def copy_out(self, slot: int, n_bytes: int) -> StateBytes | None: ...

    def copy_in(self, slot: int, state: StateBytes) -> bool: ...


class Memory:
    """Slots, KV cells and host memory of every sequence on board.

    Args:
        cache: the KV cache.
        swap_bytes: most host memory; where it does not do, sequences are computed again.
    """

    def __init__(self, cache: Cache, swap_bytes: int) -> None:
        self._cache = cache
        self._ledger = CellLedger(cache.cells)
        self._apart = CellLedger(cache.prefill_cells)
        self._space: SwapSpace[Sequence] = SwapSpace(swap_bytes)
        self._by_slot: dict[int, Sequence] = {}
        self._swap_outs = self._swap_ins = self._recomputes = 0

    @property
    def cells(self) -> int:
        return self._ledger.cells

    @property
    def free(self) -> int:
        return self._ledger.free

    @property
    def used(self) -> int:
        return self._ledger.used

    @property
    def room_apart(self) -> int:
        """Tokens that the context for prompts has room for."""
        return self._apart.free

    @property
    def swap_bytes_used(self) -> int:
        return self._space.used

    def take_counts(self) -> tuple[int, int, int]:
        """States moved to host memory, moved back, and given up, since the last call."""
        counts = self._swap_outs, self._swap_ins, self._recomputes
        self._swap_outs = self._swap_ins = self._recomputes = 0
        return counts

    def holder(self, slot: int) -> Sequence | None:
        return self._by_slot.get(slot)

    def seat(self, sequence: Sequence, slot: int) -> None:
        """Give a free `slot` to `sequence`, and take what it fills in another along."""
        if self._by_slot.get(sequence.slot) is sequence:
            del self._by_slot[sequence.slot]
        if sequence.is_loaded and slot != sequence.slot:
            self._cache.move(sequence.slot, slot)
            self._ledger.move(sequence.slot, slot)
            self._apart.move(sequence.slot, slot)
        sequence.slot = slot
        self._by_slot[slot] = sequence

    def grow(self, sequence: Sequence, tokens: int) -> None:
        """Count the cells of the next `tokens` of a loaded sequence.

        Raises:
            OutOfCells: the step would not fit.
        """
        self._ledger.use(sequence.slot, tokens)

    def begin_apart(self, sequence: Sequence) -> None:
        """Have the context for prompts compute a loaded sequence of which nothing is computed.

        Raises:
            OutOfCells: it has too little room for all that is pending.
        """
        self._apart.use(sequence.slot, sequence.n_pending)
        sequence.is_apart = True

    def end_apart(self, sequence: Sequence) -> None:
        """Have the streams' cache alone go on with `sequence`; nothing if it does already."""
        if sequence.is_apart:
            self._cache.forget_apart(sequence.slot)
            self._apart.release(sequence.slot)
            sequence.is_apart = False

    def load(self, sequence: Sequence) -> bool:
        """Bring a seated sequence into the cache; its cells must be free.

        Returns:
            Whether it could go on where it was; if not, all of it is to be computed again.
        """
        sequence.is_loaded = True
        state = sequence.state
        if state is None:
            return True
        self._drop_state(sequence)
        if self._cache.copy_in(sequence.slot, state):
            self._ledger.use(sequence.slot, sequence.position)
            self._swap_ins += 1
            return True
        self._give_up(sequence)
        return False

    def unload(self, sequence: Sequence) -> list[Sequence]:
        """Take a sequence out of the cache, its state to host memory if there is room for it.

        Returns:
            Whose state was given up for lack of host memory; itself among them, maybe.
        """
        given_up: list[Sequence] = []
        if sequence.is_loaded and sequence.position:
            given_up = self._save(sequence)
        self._empty(sequence)
        if self._by_slot.get(sequence.slot) is sequence:
            del self._by_slot[sequence.slot]
        return given_up

    def remove(self, sequence: Sequence) -> None:
        """Free everything of `sequence`, which leaves."""
        self._empty(sequence)
        self._drop_state(sequence)
        if self._by_slot.get(sequence.slot) is sequence:
            del self._by_slot[sequence.slot]

    def _save(self, sequence: Sequence) -> list[Sequence]:
        n_bytes = self._cache.state_size(sequence.slot)
        losers = self._space.losers(sequence, n_bytes) if n_bytes else None
        state = self._cache.copy_out(sequence.slot, n_bytes) if losers is not None else None
        if losers is None or state is None:
            self._give_up(sequence)
            return [sequence]
        for loser in losers:
            self._drop_state(loser)
            self._give_up(loser)
        self._space.hold(sequence, n_bytes)
        sequence.state = state
        self._swap_outs += 1
        return losers

    def _give_up(self, sequence: Sequence) -> None:
        sequence.position = 0
        self._recomputes += 1

    def _drop_state(self, sequence: Sequence) -> None:
        sequence.state = None
        self._space.release(sequence)

    def _empty(self, sequence: Sequence) -> None:
        if sequence.is_loaded:
            self._cache.forget(sequence.slot)
            self._ledger.release(sequence.slot)
            self.end_apart(sequence)
            sequence.is_loaded = False
