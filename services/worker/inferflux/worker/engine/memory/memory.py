"""Memory of sequences, which knows where the computed part of each is: in the KV cache, in host memory, or
discarded.

A request's sequence has a sequence id while it is in the cache, running or parked. Cached prefixes have the
others, and give them up as soon as a request needs them. What the prefill context computes has its cells
counted in the main context as well: it is there when it is complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from inferflux.v1 import engine_pb2
from inferflux.worker.engine.kv.compaction import Compaction, MoveCost
from inferflux.worker.engine.kv.kv import CellLedger, Release
from inferflux.worker.engine.kv.prefix_sharing import PrefixSharing
from inferflux.worker.engine.kv.seq_ids import CellCache, SeqIds
from inferflux.worker.engine.plan.planner import StepPlan
from inferflux.worker.engine.plan.sequence import NO_SEQ_ID, Sequence

from .ledger_check import Difference, difference
from .prefix_cache import PrefixCache
from .saved import SavedStates, StateCache
from .taken import PieceCache, TakenPieces


class Cache(CellCache, StateCache, PieceCache, Protocol):
    """Interface of the backend that moves sequences in and out of the KV cache."""

    @property
    def prefill_cells(self) -> int: ...

    @property
    def cell_s(self) -> float: ...

    @property
    def move_cost(self) -> MoveCost | None: ...

    def compact(self) -> float: ...

    @property
    def sharing(self) -> PrefixSharing: ...

    def forget_prefill(self, seq_id: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Repair:
    """Cells that were dropped because the ledger and llama.cpp differed over them.

    Attributes:
        sequence: the request's, if it was one's.
    """

    difference: Difference
    sequence: Sequence | None
    holder: str

    def __str__(self) -> str:
        return f"{self.difference} ({self.holder})"


class Memory:
    """Sequence ids, KV cells and saved state of every resident sequence.

    Args:
        cache: the KV cache.
        saved: what is not in it; what has no room there is computed again.
        has_prefix_cache: whether computed prefixes are kept and shared.
        disk_prompt_tokens: prompts of this many tokens or more go to disk once computed; 0: none do.
        longest_move_s: moving cells may delay a step by this much; 0: none are moved.

    Attributes:
        prefixes: the cached prefixes.
        ledger: which sequence fills which cells of the cache.
        taken: takes pieces of other engines as cached prefixes.
    """

    def __init__(
        self,
        cache: Cache,
        saved: SavedStates,
        *,
        has_prefix_cache: bool,
        longest_move_s: float = 0.0,
        disk_prompt_tokens: int = 0,
    ) -> None:
        self._cache = cache
        self._saved = saved
        self._disk_prompt_tokens = disk_prompt_tokens
        self._seq_ids = SeqIds(cache)
        self.ledger = self._seq_ids.ledger
        self.prefixes = PrefixCache(
            self._seq_ids,
            sharing=cache.sharing,
            cell_s=cache.cell_s,
            is_on=has_prefix_cache,
            on_evict=saved.keep,
        )
        self.taken = TakenPieces(cache, self._seq_ids, self.prefixes)
        self._prefill = CellLedger(cache.prefill_cells)
        self._compaction = Compaction(cache.cell_s, cache.move_cost, longest_move_s)
        self._moves = 0
        self._swap_outs = self._swap_ins = self._recomputes = 0

    @property
    def cells(self) -> int:
        return self.ledger.cells

    @property
    def free(self) -> int:
        """Cells that no request holds: cached prefixes give theirs up."""
        return self.ledger.cells - self.ledger.held

    @property
    def free_seq_ids(self) -> int:
        """Number of requests that the cache may hold in addition."""
        return self._seq_ids.n_free + self.prefixes.n_ids

    def trial(self) -> Release:
        """Find out what evicting requests would free."""
        return self.ledger.trial()

    @property
    def is_divisible(self) -> bool:
        """True if a part of what is computed of a sequence can be had without the rest."""
        return self._cache.sharing.is_divisible

    def last_position(self, seq_id: int) -> int:
        """The last position that a sequence id holds; -1: none."""
        return self._seq_ids.positions(seq_id)[1]

    @property
    def prefill_room(self) -> int:
        """Tokens that the prefill context has room for."""
        return self._prefill.free

    def write_stats(self, stats: engine_pb2.StepStats) -> None:
        """Write what is held, and what happened since the last call."""
        ledger = self.ledger
        stats.kv_cells_used = ledger.held
        stats.kv_cells_cached = ledger.cached
        stats.kv_cells_shared = ledger.shared
        stats.kv_cells_high_water = ledger.high_water
        stats.kv_cells_width, stats.kv_cells_holes = ledger.width, ledger.width - ledger.used
        stats.kv_compactions, self._moves = self._moves, 0
        stats.swap_outs, stats.swap_ins = self._swap_outs, self._swap_ins
        stats.recomputes = self._recomputes
        self._swap_outs = self._swap_ins = self._recomputes = 0
        self.prefixes.write_stats(stats)

    def grow(self, sequence: Sequence, tokens: int) -> None:
        """Count the cells of the next `tokens` of a loaded sequence.

        Raises:
            OutOfCells: the step would not fit.
        """
        self.prefixes.make_room(cells=tokens)
        self.ledger.use(sequence.seq_id, tokens)

    @property
    def empty(self) -> int:
        """Cells that nothing fills, cached prefixes neither."""
        return self.ledger.free

    def trim(self, sequence: Sequence) -> None:
        """Free the cells of a loaded sequence from its position on: those of rejected tokens."""
        self._seq_ids.cut(sequence.seq_id, sequence.position)

    def match(self, sequence: Sequence) -> None:
        """Have a loaded sequence of which nothing is computed begin with what others have of its prompt.

        It is not loaded any more if the KV cache has lost some of that since the tiers below were asked: they
        may have it now, and are asked again.
        """
        prefixes, reuse = self.prefixes, sequence.reuse
        if sequence.position or reuse.looked_up_at == prefixes.version or sequence.computes_all:
            return
        scope, tokens = sequence.origin.cache_scope, sequence.tokens[: sequence.n_tokens]
        if reuse.known_tokens and prefixes.known(scope, tokens) < reuse.known_tokens:
            reuse.known_tokens = 0
            sequence.restore.is_looked_up = False
            self._empty(sequence)
            return
        is_first = reuse.looked_up_at < 0
        reuse.looked_up_at = prefixes.version
        matched, holder = prefixes.find(scope, tokens, is_first=is_first, had_hit=reuse.had_hit)
        if holder is not None and sequence.images:
            whole = sequence.images.shareable(matched)
            if whole < matched and not self._cache.sharing.is_divisible:
                whole = 0
            matched, holder = (whole, holder) if whole else (0, None)
        if holder is not None:
            reuse.had_hit = True
            # Its first step there may have been given up.
            self.end_prefill_context(sequence)
            self._seq_ids.share(holder, sequence.seq_id, matched)
            sequence.begin_at(matched)
            if matched == sequence.n_tokens - 1:
                arrival = sequence.restore.arrival
                prefixes.make_way(holder, tokens, is_own=arrival is not None and arrival.seq_id == holder)
        sequence.note_checkpoint(prefixes.parts_at(scope, tokens, matched))

    def make_checkpoint(self, sequence: Sequence) -> None:
        """Keep what is computed of a loaded sequence for others, while it goes on."""
        if sequence.images.shareable(sequence.position) < sequence.position:
            return
        tokens = sequence.tokens[: sequence.position].copy()
        self.prefixes.make_checkpoint(sequence.seq_id, sequence.origin.cache_scope, tokens)

    def complete_prefill(self, sequence: Sequence) -> None:
        """All that is known of a loaded sequence is computed: others can share it."""
        self.end_prefill_context(sequence)
        if sequence.is_deterministic:
            return
        shareable = sequence.images.shareable(sequence.position)
        if shareable == sequence.position or (shareable and self._cache.sharing.is_divisible):
            self.prefixes.hold(sequence.seq_id, sequence.origin.cache_scope, sequence.tokens[:shareable])
        if 0 < self._disk_prompt_tokens <= shareable == sequence.position:
            self._saved.keep_on_disk(sequence)

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
        self.prefixes.make_room(cells=sequence.position, ids=1)
        sequence.seq_id = self._seq_ids.take()
        if sequence.restore.state is None:
            return True
        is_own = sequence.restore.restored_from is None
        if self._saved.restore(sequence):
            self.ledger.use(sequence.seq_id, sequence.position)
            self._swap_ins += is_own
            if not is_own:
                self._note_restored(sequence)
            return True
        self._discard(sequence)
        return False

    def _note_restored(self, sequence: Sequence) -> None:
        """A tier had what the KV cache is not asked for any more."""
        reuse, n_tokens = sequence.reuse, sequence.n_tokens
        is_first = reuse.looked_up_at < 0
        self.prefixes.note_restored(n_tokens, sequence.position, is_first=is_first, had_hit=reuse.had_hit)
        reuse.looked_up_at = self.prefixes.version
        reuse.had_hit = True

    def must_wait(self, sequence: Sequence) -> bool:
        """True if a sequence waits for what may be found of it."""
        return sequence.restore.fetch is not None or self._saved.must_wait(sequence)

    def look_up(self, sequence: Sequence) -> None:
        """Find what of a sequence that is not loaded can be restored, and fetch it."""
        restore = sequence.restore
        if restore.fetch is None and (restore.is_looked_up or sequence.position or sequence.computes_all):
            return
        tokens = sequence.tokens[: sequence.n_tokens]
        known = sequence.reuse.known_tokens = self.prefixes.known(sequence.origin.cache_scope, tokens)
        self._saved.look_up(sequence, known=known, has_checkpoints=self.prefixes.has_checkpoints)

    def unload(self, sequence: Sequence) -> list[Sequence]:
        """Take a sequence out of the cache, its state to host memory if there is room for it.

        Returns:
            Which have to compute more again for lack of host memory, or of time to copy; itself among them,
            maybe.
        """
        behind: list[Sequence] = []
        if sequence.is_loaded and sequence.position:
            behind = self._save(sequence)
        self._empty(sequence)
        return behind

    def remove(self, sequence: Sequence) -> None:
        """Free everything of `sequence`, which leaves; what is computed of it may stay as a cached prefix."""
        if sequence.is_loaded and sequence.position and not sequence.is_outside_main_context:
            self._keep(sequence)
        self._empty(sequence)
        self._saved.leave(sequence)

    def _keep(self, sequence: Sequence) -> None:
        """Keep what others can begin with of a loaded sequence that leaves, if anything."""
        shareable = sequence.images.shareable(sequence.position)
        if shareable < sequence.position:
            if not shareable or not self._cache.sharing.is_divisible:
                return
            self._seq_ids.cut(sequence.seq_id, shareable)
        tokens = sequence.tokens[:shareable].copy()
        self.prefixes.keep(sequence.seq_id, sequence.origin.cache_scope, tokens)
        sequence.seq_id = NO_SEQ_ID

    def limit_host(self, n_bytes: int) -> list[Sequence]:
        """Keep to this much host memory from now on; returns which have to be computed again for that."""
        losers = self._saved.limit_host(n_bytes)
        for loser in losers:
            self._discard(loser)
        return losers

    def store(self, limit_s: float) -> tuple[int, int]:
        """Put what is worth it of the cached prefixes and of host memory on disk, within `limit_s`.

        Returns:
            (states, bytes) that are on disk now, and were not.
        """
        return self._saved.store(self.prefixes.cached(), limit_s)

    def hand_over_all(self, sequences: Iterable[Sequence], limit_s: float) -> None:
        """Leave what is computed of these to other engines of this machine, in order, as far as `limit_s`
        goes. What the prefill context computes is lost."""
        self._saved.hand_over_all((s for s in sequences if can_be_left(s)), limit_s)

    def hand_over(self, sequence: Sequence) -> None:
        """Leave what is computed of a sequence to another engine of this machine, some time later."""
        if can_be_left(sequence):
            self._saved.hand_over(sequence)

    def close_holes(self, plan: StepPlan) -> None:
        """After a step: move the filled cells together, if what holes between them may cost has reached that.

        Raises:
            DecodeError: the engine has to start again.
        """
        ledger = self.ledger
        if self._compaction.is_due(len(plan.decoding), width=ledger.width, used=ledger.used):
            self._compaction.moved(ledger.used, self._cache.compact())
            ledger.move_together()
            self._moves += 1

    def repair(self, requests: Iterable[Sequence]) -> list[Repair]:
        """Drop what llama.cpp does not have as the ledger counts it; requests of it are computed again.

        What the prefill context computes is looked at once it is complete.
        """
        sequences = {s.seq_id: s for s in requests if s.is_loaded}
        repairs = []
        for seq_id in range(self._cache.sequences):
            sequence = sequences.get(seq_id)
            if sequence is not None and sequence.is_outside_main_context:
                continue
            cells = self.ledger.cells_of(seq_id)
            found = difference(
                seq_id,
                cells,
                self._cache.positions(seq_id),
                last_wanted=sequence.images.position(cells - 1) if sequence is not None else None,
                holds_all=self._cache.sharing.is_divisible,
            )
            if found is not None:
                repairs.append(Repair(found, sequence, self._drop(seq_id, sequence)))
        return repairs

    def _drop(self, seq_id: int, sequence: Sequence | None) -> str:
        """Free what a sequence id has, and forget what was computed there; returns the holder's name."""
        if sequence is not None:
            self._empty(sequence)
            self._discard(sequence)
            return f"request {sequence.key}"
        if self.prefixes.discard(seq_id):
            return "cached prefix"
        self._cache.forget(seq_id)
        self.ledger.release(seq_id)
        return "not in use"

    def _save(self, sequence: Sequence) -> list[Sequence]:
        position = sequence.position
        losers = None if sequence.is_deterministic else self._saved.save(sequence)
        if losers is None:
            self._discard(sequence)
            return [sequence]
        for loser in losers:
            self._discard(loser)
        self._swap_outs += 1
        return losers if sequence.position == position else [*losers, sequence]

    def _discard(self, sequence: Sequence) -> None:
        sequence.discard()
        self._recomputes += 1

    def _empty(self, sequence: Sequence) -> None:
        if sequence.is_loaded:
            self.end_prefill_context(sequence)
            self.prefixes.drop(sequence.seq_id)
            self._seq_ids.give_back(sequence.seq_id)
            sequence.seq_id = NO_SEQ_ID


def can_be_left(sequence: Sequence) -> bool:
    """True if another engine can go on with what is computed of a sequence."""
    is_whole = sequence.images.shareable(sequence.position) == sequence.position
    return is_whole and not sequence.is_outside_main_context
