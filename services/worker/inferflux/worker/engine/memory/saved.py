"""Saving sequences from the KV cache to the tiers below it, and restoring them from there.

A prefix that is found in a tier is restored as a preempted sequence is: the sequence gets its state and its
position, and is loaded when there is room. A file is read meanwhile; the sequence waits, others go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

from inferflux.worker.engine.kv.envelope import Envelope, StateBytes, TokenArray
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.tiers.index import BLOCK
from inferflux.worker.engine.tiers.rates import Tier
from inferflux.worker.engine.tiers.searches import SEARCH_LIMIT_S
from inferflux.worker.engine.tiers.tiers import Tiers

# A read that takes longer than computing would is given up; no sooner than the first, no later than the
# second.
_SHORTEST_READ_S = 0.5
_LONGEST_READ_S = 5.0
# A request waits for what another process leaves of it: this part of what computing takes, ...
_SEARCH_PART = 1 / 4
# ... or this many seconds if that is more: on a busy machine eight states take as long to be left. But no
# more than this many times what computing takes, where that is known: others may be computed as well.
_SHORTEST_SEARCH_S = 0.5
_MOST_TIMES = 4


class StateCache(Protocol):
    """Interface of the backend that reads and writes the state of sequences."""

    def state_size(self, seq_id: int) -> int: ...

    def copy_out(self, seq_id: int, into: StateBytes) -> bool: ...

    def copy_in(self, seq_id: int, state: StateBytes) -> bool: ...

    def first_positions(self, state: StateBytes, n: int) -> StateBytes | None: ...

    def share(self, source: int, seq_id: int, cells: int) -> None: ...

    def forget(self, seq_id: int, position: int = 0) -> None: ...

    @property
    def spare_id(self) -> int | None: ...


class SavedStates:
    """State of sequences that are not in the KV cache.

    Others wait while a state is copied out. So a step copies only so much: of a prefix that takes longer, the
    first tokens are saved.

    Args:
        clock_s: monotonic clock.
        longest_copy_s: that a sequence is copied that is preempted.
    """

    def __init__(
        self,
        cache: StateCache,
        tiers: Tiers[Sequence],
        clock_s: Callable[[], float],
        *,
        longest_copy_s: float,
    ) -> None:
        self._cache = cache
        self._tiers = tiers
        self._clock_s = clock_s
        self._longest_copy_s = longest_copy_s
        self._copying_left_s = longest_copy_s
        self._restore_s: list[tuple[Tier, float]] = []

    def begin_step(self, copying_s: float) -> None:
        """Limit how long the prefixes that leave the KV cache in this step are copied."""
        self._copying_left_s = copying_s

    @property
    def copying_left_s(self) -> float:
        """Seconds that the step may copy still."""
        return self._copying_left_s

    def copied(self, seconds: float) -> None:
        """The step has copied for `seconds`."""
        self._copying_left_s = max(self._copying_left_s - seconds, 0.0)

    def take_restore_s(self) -> list[tuple[Tier, float]]:
        """Seconds from lookup to KV cache of each prefix that was restored since the last call."""
        taken, self._restore_s = self._restore_s, []
        return taken

    def save(self, sequence: Sequence) -> list[Sequence] | None:
        """Save a loaded sequence that is preempted, until it resumes.

        Returns:
            Whose state was evicted for it; None if it is not saved itself.
        """
        n_bytes = self._cache.state_size(sequence.seq_id)
        if n_bytes == 0:
            return None
        scope, tokens = sequence.origin.cache_scope, sequence.tokens[: sequence.position]
        has_room = self._tiers.has_room(n_bytes, sequence.order)
        if not has_room and not self._tiers.wants(scope, tokens, n_bytes):
            return None
        limit_s = self._longest_copy_s
        if sequence.images.has_plane:  # its first cells alone are not at their first positions
            rates = self._tiers.rates
            if rates.copied_within(limit_s, sequence.position, n_bytes) < sequence.position:
                return None
        envelope = self._copied(sequence.seq_id, scope, tokens, n_bytes, limit_s)
        if envelope is None:
            return None
        losers = self._tiers.hold(envelope, sequence)
        if losers is None:
            self._tiers.keep(envelope)
            return None
        sequence.restore.state = envelope
        if envelope.header.n_past < sequence.position:
            sequence.go_back(envelope.header.n_past)
        return losers

    def keep(self, seq_id: int, scope: str, tokens: TokenArray, left: int = 0) -> None:
        """Keep a cached prefix that is about to leave the KV cache, if that is worth it.

        Args:
            left: of its first tokens, how many stay in the KV cache.
        """
        n_bytes = self._cache.state_size(seq_id)
        if n_bytes == 0:
            return
        if not self._tiers.wants(scope, tokens, n_bytes, left=left):
            return
        began_s = self._clock_s()
        envelope = self._copied(seq_id, scope, tokens, n_bytes, self._copying_left_s)
        self.copied(self._clock_s() - began_s)
        if envelope is not None and envelope.header.n_past > left:
            self._tiers.keep(envelope)

    def _copied(
        self, seq_id: int, scope: str, tokens: TokenArray, n_bytes: int, limit_s: float
    ) -> Envelope | None:
        """The state of as many first tokens as are copied within `limit_s`; None if they are too few."""
        n, spare = self._tiers.rates.copied_within(limit_s, tokens.shape[0], n_bytes), self._cache.spare_id
        if n == tokens.shape[0] or spare is None:
            envelope = self._tiers.blank(scope, tokens, n_bytes)
            return envelope if self._copy_out(seq_id, envelope) else None
        if n < BLOCK:
            return None
        self._cache.share(seq_id, spare, n)
        envelope = self._tiers.blank(scope, tokens[:n], self._cache.state_size(spare))
        is_whole = self._copy_out(spare, envelope)
        self._cache.forget(spare)
        return envelope if is_whole else None

    def keep_on_disk(self, sequence: Sequence) -> None:
        """Have a prompt that was just computed written to disk, where it outlives this process."""
        scope, tokens = sequence.origin.cache_scope, sequence.tokens[: sequence.position]
        n_bytes = self._cache.state_size(sequence.seq_id)
        if n_bytes == 0 or not self._tiers.wants_on_disk(scope, tokens, n_bytes):
            return
        envelope = self._copied(sequence.seq_id, scope, tokens, n_bytes, self._longest_copy_s)
        if envelope is not None:
            self._tiers.keep_on_disk(envelope)

    def search(self, sequence: Sequence) -> None:
        """Search for what another process has left of a request."""
        tokens = sequence.tokens[: sequence.n_tokens].copy()
        sequence.restore.search = self._tiers.exchange.search(sequence.origin.cache_scope, tokens)

    def must_wait(self, sequence: Sequence) -> bool:
        """True if a request waits for what may be found of it, or comes of it."""
        search, arrival = sequence.restore.search, sequence.restore.arrival
        is_sought = search is not None and not (search.is_over or self._tiers.has_nearly_all(search))
        is_coming = arrival is not None and not arrival.is_over
        if not is_sought and not is_coming:
            return False
        since_s, now_s = sequence.times.started_s, self._clock_s()
        prefill_s = self._tiers.rates.prefill_s(sequence.n_tokens)
        if arrival is not None and is_coming and now_s - since_s < (prefill_s or math.inf):
            since_s = max(since_s, arrival.progress_s)
        shortest_s = min(_MOST_TIMES * prefill_s or _SHORTEST_SEARCH_S, _SHORTEST_SEARCH_S)
        limit_s = max(_SEARCH_PART * prefill_s, shortest_s)
        return now_s - since_s < min(limit_s, SEARCH_LIMIT_S)

    def look_up(self, sequence: Sequence, *, known: int = 0, has_checkpoints: bool = False) -> None:
        """Find a prefix of a sequence of which nothing is computed, once, and fetch it.

        Args:
            known: tokens that the KV cache has already.
            has_checkpoints: whether one may be made where its tokens part from those of a state.
        """
        restore = sequence.restore
        if restore.fetch is not None:
            self._go_on_fetching(sequence)
        elif restore.state is None and sequence.position == 0 and not restore.is_looked_up:
            restore.is_looked_up = True
            scope, tokens = sequence.origin.cache_scope, sequence.tokens[: sequence.n_tokens]
            match = self._tiers.find(scope, tokens, known=known)
            if has_checkpoints:
                shared = known if match is None else match.tokens
                sequence.note_checkpoint(self._tiers.parts_at(scope, tokens, shared))
            if match is not None:
                restore.fetch = self._tiers.fetch(match)
                restore.fetch_began_s = self._clock_s()
                self._go_on_fetching(sequence)
            self._end_search(sequence)

    def restore(self, sequence: Sequence) -> bool:
        """Copy the state of a sequence to its sequence id, and drop it; whether it is there now."""
        restore = sequence.restore
        if restore.state is None:
            return False
        is_restored = self._copy_in(sequence, restore.state)
        if restore.restored_from is not None and is_restored:
            self._restore_s.append((restore.restored_from, self._clock_s() - restore.fetch_began_s))
        restore.restored_from = None
        restore.state = None
        self._tiers.resumed(sequence)
        return is_restored

    def limit_host(self, n_bytes: int) -> list[Sequence]:
        """Keep to this much host memory from now on; returns whose state was evicted for that."""
        return self._tiers.limit_host(n_bytes)

    def leave(self, sequence: Sequence) -> None:
        """A sequence is gone; what was saved of it can serve others."""
        restore = sequence.restore
        restore.state = None
        self._end_search(sequence)
        if restore.fetch is not None:
            self._tiers.abandon(restore.fetch)
            restore.fetch = None
        self._tiers.release(sequence)

    def _end_search(self, sequence: Sequence) -> None:
        if sequence.restore.search is not None:
            self._tiers.exchange.end(sequence.restore.search)
            sequence.restore.search = None

    def store(self, cached: Iterable[tuple[int, str, TokenArray]], limit_s: float) -> tuple[int, int]:
        """Put what is worth it on disk, the last used first: cached prefixes, then those in host memory.

        Args:
            cached: (sequence id, scope, tokens) of those in the KV cache, the last used first.
            limit_s: what is not written by then is lost.

        Returns:
            (states, bytes) that are on disk now, and were not.
        """
        left_s, tiers = self._countdown(limit_s), self._tiers
        in_cache = all(self._store_cached(*each, left_s()) for each in cached)
        if in_cache:
            all(tiers.files.store(kept, left_s()) for kept in tiers.cold_in_host())
        return tiers.stored(left_s())

    def hand_over(self, sequence: Sequence, seconds: float = 0.0) -> None:
        """Leave what is computed of a request to other engines of this machine, some time later.

        Args:
            seconds: to wait for room, and for all of it to be copied; 0: others decode, and as much is copied
                as a step may.
        """
        held = self._tiers.held_for(sequence)
        if held is not None and held.envelope is not None:
            if self._tiers.exchange.has_room(held.n_bytes, seconds):
                self._tiers.exchange.offer(held.envelope)
        elif sequence.is_loaded and sequence.position >= BLOCK:
            scope, tokens = sequence.origin.cache_scope, sequence.tokens[: sequence.position]
            n_bytes = self._cache.state_size(sequence.seq_id)
            is_worth_it = n_bytes and self._tiers.rates.is_worth_keeping(n_bytes, tokens.shape[0])
            if not is_worth_it or not self._tiers.exchange.has_room(n_bytes, seconds):
                return
            limit_s = seconds or self._longest_copy_s
            envelope = self._copied(sequence.seq_id, scope, tokens, n_bytes, limit_s)
            if envelope is not None:
                self._tiers.exchange.offer(envelope)

    def hand_over_all(self, sequences: Iterable[Sequence], limit_s: float) -> None:
        """The same of several, in order, before this engine ends.

        Args:
            limit_s: what is not written by then is lost.
        """
        left_s = self._countdown(limit_s)
        for sequence in sequences:
            if left_s() <= 0:
                break
            self.hand_over(sequence, left_s())
        self._tiers.exchange.wait_for_writes(left_s())

    def _countdown(self, limit_s: float) -> Callable[[], float]:
        """Tells how many of these seconds are left."""
        until_s = self._clock_s() + limit_s
        return lambda: max(until_s - self._clock_s(), 0.0)

    def _store_cached(self, seq_id: int, scope: str, tokens: TokenArray, seconds: float) -> bool:
        """Store it if it is worth it; return whether there is time and room for more."""
        kept = self._tiers.containing(scope, tokens)
        if kept is not None:
            return self._tiers.files.store(kept, seconds)
        n_bytes = self._cache.state_size(seq_id)
        if not n_bytes or not self._tiers.rates.is_worth_keeping(n_bytes, tokens.shape[0]):
            return seconds > 0
        envelope = self._tiers.blank(scope, tokens, n_bytes)
        if seconds <= 0 or not self._copy_out(seq_id, envelope):
            return seconds > 0
        return self._tiers.files.store_new(envelope, seconds)

    def _go_on_fetching(self, sequence: Sequence) -> None:
        restore, fetch = sequence.restore, sequence.restore.fetch
        if fetch is None:
            return
        waited_s = self._clock_s() - restore.fetch_began_s
        if fetch.is_done:
            envelope = self._tiers.fetched(fetch)
            # Images are whole, or computed again: their placeholders may begin alike.
            usable = sequence.images.shareable(fetch.tokens)
            if usable < fetch.tokens and not self._tiers.is_divisible:
                usable = 0
            if envelope is not None and usable:
                restore.state = envelope
                sequence.begin_at(usable, fetch.tier)
                restore.restored_from = fetch.tier
        elif waited_s < min(max(fetch.match.prefill_s, _SHORTEST_READ_S), _LONGEST_READ_S):
            return
        else:
            self._tiers.abandon(fetch, is_late=True)
        restore.fetch = None

    def _copy_out(self, seq_id: int, envelope: Envelope) -> bool:
        began_s = self._clock_s()
        is_whole = self._cache.copy_out(seq_id, envelope.payload)
        self._tiers.rates.copy_out.observe(envelope.n_bytes, self._clock_s() - began_s)
        return is_whole

    def _copy_in(self, sequence: Sequence, envelope: Envelope) -> bool:
        began_s = self._clock_s()
        state: StateBytes | None = envelope.payload
        if sequence.position < envelope.header.n_past:
            state = self._cache.first_positions(envelope.payload, sequence.position)
        if state is None or not self._cache.copy_in(sequence.seq_id, state):
            return False
        self._tiers.rates.copy_in.observe(state.shape[0], self._clock_s() - began_s)
        return True
