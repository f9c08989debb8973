"""Cached prefixes: what ended sequences leave in the KV cache, and what new ones begin with.

A hit costs no copy: llama.cpp has several sequences share cells, and later tokens take cells of their own.

Not every model's memory can share any part of a sequence. Then there are checkpoints: sequence ids that keep
what was computed up to a point, while the request goes on. One is made where a prompt parts from what was
computed before and cannot be shared: others may part from it there as well. Memory that shares nothing but
whole sequences has another where a prompt ends, for what follows the answer. The first is after Marconi
(Pan et al., 2025).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from inferflux.v1 import engine_pb2, generation_pb2
from inferflux.worker.engine.kv.prefix_sharing import PrefixSharing, Sharing
from inferflux.worker.engine.kv.radix import BeforeEviction, Match, RadixPrefixCache, TokenArray
from inferflux.worker.engine.kv.rent import Rent
from inferflux.worker.engine.kv.seq_ids import SeqIds
from inferflux.worker.engine.plan.planner import StepPlan

# A shorter prefix is not worth a sequence id: prompts of one chat template share a few tokens, whatever they
# say. The fleet's index has no shorter ones by default either.
SHORTEST_MATCH = 16
# Sequences that go on in another way which are asked for what they still have of a prompt.
_MOST_ASKED = 8
# Cached prefixes that leave in one step for what they cost; more would delay the step.
_EVICTIONS_A_STEP = 4


@dataclass(slots=True)
class _Counts:
    """Counts of what happened since the last report."""

    queries: int = 0
    hits: int = 0
    partial_hits: int = 0
    matched_tokens: int = 0
    evictions: int = 0

    def hit(self, found: int, *, of: int) -> None:
        """`found` tokens of a prompt were there; its last one is computed in any case."""
        self.hits += 1
        self.partial_hits += found < of - 1
        self.matched_tokens += found


class PrefixCache:
    """The tree of prefixes, and the sequence ids that hold them.

    Args:
        seq_ids: whose ids and cells cached prefixes take.
        sharing: what the model's memory allows.
        cell_s: see `Rent`.
        is_on: otherwise nothing is kept and nothing is found.
        on_evict: called before a sequence is evicted.

    Attributes:
        has_checkpoints: whether some prefixes are kept while their requests go on.
    """

    def __init__(
        self,
        seq_ids: SeqIds,
        *,
        sharing: PrefixSharing,
        cell_s: float,
        is_on: bool,
        on_evict: BeforeEviction,
    ) -> None:
        self._on_evict = on_evict
        self._seq_ids = seq_ids
        self._sharing = sharing
        self.has_checkpoints = is_on and not sharing.is_divisible
        self._tree = RadixPrefixCache(is_divisible=sharing.is_divisible)
        self._rent = Rent(cell_s)
        self._is_on = is_on
        self._counts = _Counts()
        self._news: dict[int, engine_pb2.CachedPrefix] = {}
        # Prefixes that have come for requests which are still to come.
        self._awaited: set[int] = set()

    @property
    def is_on(self) -> bool:
        """True if prefixes are kept."""
        return self._is_on

    @property
    def is_divisible(self) -> bool:
        """True if a part of a sequence can be shared."""
        return self._sharing.is_divisible

    def tokens_of(self, seq_id: int) -> TokenArray:
        """All tokens that a sequence id which `longest` found has for others."""
        return self._tree.tokens_of(seq_id)

    @property
    def n_ids(self) -> int:
        """Sequence ids that cached prefixes hold."""
        return self._tree.n_evictable

    @property
    def version(self) -> int:
        """Rises whenever a prompt that found nothing may find something."""
        return self._tree.version

    def write_stats(self, stats: engine_pb2.StepStats) -> None:
        """Write what is cached, and what happened since the last call."""
        counts, self._counts = self._counts, _Counts()
        stats.cached_sequences = self.n_ids
        stats.prefix_queries = counts.queries
        stats.prefix_hits = counts.hits
        stats.prefix_partial_hits = counts.partial_hits
        stats.prefix_matched_tokens = counts.matched_tokens
        stats.prefix_evictions = counts.evictions

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    def take_news(self, most: int) -> Iterable[engine_pb2.CachedPrefix]:
        """Return the prefixes that left since the last call, and up to `most` of those that are held."""
        held = islice((entry for entry, each in self._news.items() if each.token_ids), most)
        gone = (entry for entry, each in self._news.items() if not each.token_ids)
        return [self._news.pop(entry) for entry in [*gone, *held]]

    def cached(self) -> Iterator[tuple[int, str, TokenArray]]:
        """(sequence id, scope, tokens) of each cached prefix, the most used first."""
        tree = self._tree
        for seq_id in tree.unpinned():
            yield seq_id, tree.scope_of(seq_id), tree.tokens_of(seq_id)

    def find(self, scope: str, tokens: TokenArray, *, is_first: bool, had_hit: bool) -> Match:
        """The longest prefix that is worth sharing; never all of the `tokens`, for one has to be computed.

        Args:
            is_first: whether this prompt was not looked up before.
            had_hit: whether a prefix of it was found before: a prompt counts as one hit, however often its
                cells are taken away.
        """
        if not self._is_on:
            return Match(0, None)
        self._counts.queries += is_first
        match = self.longest(scope, tokens[:-1])
        if match.matched_tokens < SHORTEST_MATCH:
            return Match(0, None)
        # A piece that ends with the last token is used as well, though that token is computed again.
        self._tree.use(Match(match.matched_tokens + 1, match.holder))
        if not had_hit:
            self._counts.hit(match.matched_tokens, of=tokens.shape[0])
        self._rent.hit(match.matched_tokens)
        return match

    def note_restored(self, n_tokens: int, restored: int, *, is_first: bool, had_hit: bool) -> None:
        """Count a prompt of `n_tokens` whose first `restored` ones came from a tier below the KV cache.

        Args:
            is_first, had_hit: as for `find`.
        """
        self._counts.queries += is_first
        if not had_hit:
            self._counts.hit(restored, of=n_tokens)

    def known(self, scope: str, tokens: TokenArray) -> int:
        """Number of these tokens that could be shared."""
        return self.longest(scope, tokens[:-1]).matched_tokens if self._is_on else 0

    def parts_at(self, scope: str, tokens: TokenArray, shared: int) -> int:
        """Find the point at which a checkpoint is worthwhile: these tokens part there from those of others.

        Args:
            shared: of its first tokens, how many are shared.

        Returns:
            The number of first tokens; 0: they are not worth it.
        """
        if not self.has_checkpoints:
            return 0
        known = self._tree.lookup(scope, tokens[:-1]).matched_tokens
        return known if known - shared >= SHORTEST_MATCH else 0

    def hold(self, seq_id: int, scope: str, tokens: TokenArray) -> None:
        """A request has computed `tokens`, and goes on: others can share them from now on."""
        if not self._is_on:
            return
        if self._sharing.kind is Sharing.CHECKPOINTS:
            self.make_checkpoint(seq_id, scope, tokens)
        else:
            self._hold(seq_id, scope, tokens)

    def make_checkpoint(self, seq_id: int, scope: str, tokens: TokenArray) -> None:
        """Keep what a request has computed, which goes on: `tokens`. Not if little more is kept then."""
        n = tokens.shape[0]
        if not self.has_checkpoints or n - self.longest(scope, tokens).matched_tokens < SHORTEST_MATCH:
            return
        if self._seq_ids.n_free == 0 and not self._evict():
            return
        kept = self._seq_ids.take()
        self._seq_ids.share(seq_id, kept, n)
        self.keep(kept, scope, tokens)

    def _hold(self, seq_id: int, scope: str, tokens: TokenArray) -> None:
        for superseded in self._tree.hold(scope, tokens, seq_id):
            self._give_back(superseded)
        self._tell(seq_id, scope, tokens)

    def longest(self, scope: str, tokens: TokenArray) -> Match:
        """The longest prefix of `tokens` that can be shared."""
        if self._sharing.is_divisible:
            return self._tree.lookup(scope, tokens)
        for match in self._tree.candidates(scope, tokens, _MOST_ASKED):
            if match.holder is not None and self._sharing.can_begin(
                *self._seq_ids.positions(match.holder), match.matched_tokens
            ):
                return match
        return Match(0, None)

    def keep(self, seq_id: int, scope: str, tokens: TokenArray) -> None:
        """A request has ended that had `tokens` computed: its sequence id is a cached prefix's, or free."""
        if not self._is_on or tokens.shape[0] < SHORTEST_MATCH:
            self.drop(seq_id)
            self._seq_ids.give_back(seq_id)
            return
        self._hold(seq_id, scope, tokens)
        if self._tree.unpin(seq_id):
            self._seq_ids.ledger.keep(seq_id)
        else:
            self._give_back(seq_id)

    def drop(self, seq_id: int) -> None:
        """A request's cells are freed: no request can share them any more."""
        self._tree.drop(seq_id)
        self._tell_gone(seq_id)

    def discard(self, seq_id: int) -> bool:
        """Give up a cached prefix that cannot be used any more; whether the sequence id was one's."""
        if not self._tree.is_evictable(seq_id):
            return False
        self._tree.drop(seq_id)
        self._give_back(seq_id)
        return True

    def make_way(self, holder: int, tokens: TokenArray, *, is_own: bool) -> None:
        """Give up a cached prefix that has all `tokens` of a request, which computes the last one again.

        The request gets the cells of what it computes. Were these freed later, its next token would come to
        lie before its last one, and attention would add up in another order than if it had come alone.

        Args:
            is_own: it has come for this request. Another one stays if it has more tokens.
        """
        held = self._tree.tokens_of(holder)
        n = tokens.shape[0]
        if (held.shape[0] == n or (is_own and held.shape[0] > n)) and np.array_equal(held[:n], tokens):
            self.discard(holder)

    def make_room(self, *, cells: int = 0, ids: int = 0) -> None:
        """Evict cached prefixes until that many cells and sequence ids are free, or none is left."""
        while self._seq_ids.ledger.free < cells or self._seq_ids.n_free < ids:
            if not self._evict(spared=self._awaited) and not self._evict():
                return

    def await_request(self, seq_id: int) -> None:
        """A request comes that begins with a cached prefix: others are evicted first, and it pays no rent."""
        self._awaited.add(seq_id)

    def await_no_more(self, seq_id: int | None) -> None:
        """Undo `await_request`; nothing where that was not called."""
        if seq_id is not None:
            self._awaited.discard(seq_id)

    def clear(self, scope: str = "") -> tuple[int, int]:
        """Give up every cached prefix, without keeping it anywhere else. What requests hold stays.

        Args:
            scope: only of this one; empty: of every scope.

        Returns:
            Sequences that are gone, and cells that are free for it.
        """
        ledger = self._seq_ids.ledger
        free_before = ledger.free
        gone = self._tree.clear(scope)
        for seq_id in gone:
            self._give_back(seq_id)
        return len(gone), ledger.free - free_before

    def report_all(self) -> None:
        """Report all that is held once more."""
        for seq_id in self._tree.held():
            self._tell(seq_id, self._tree.scope_of(seq_id), self._tree.tokens_of(seq_id))

    def pay(self, seconds: float, plan: StepPlan) -> None:
        """Charge cached prefixes for a step, and evict some that are not worth their cells."""
        if not self._is_on:
            return
        ledger = self._seq_ids.ledger
        rows = 0 if plan.in_prefill_context else plan.n_tokens
        n_prefill = 0 if plan.decoding else plan.n_prefill
        self._rent.step(seconds, rows=rows, n_prefill=n_prefill, cached_cells=ledger.cached)
        most = self._rent.affordable_cells()
        for _ in range(_EVICTIONS_A_STEP):
            if most is None or ledger.cached <= most or not self._evict(spared=self._awaited):
                return

    def _evict(self, spared: Container[int] = ()) -> bool:
        """Evict what was used least; False if nothing is left but what is spared."""
        eviction = self._tree.evict(self._on_evict, spared)
        if eviction is None:
            return False
        self._counts.evictions += 1
        tree, holder, kept = self._tree, eviction.holder, eviction.kept_tokens
        if kept >= SHORTEST_MATCH:
            self._seq_ids.cut(holder, kept)
            self._tell(holder, tree.scope_of(holder), tree.tokens_of(holder))
            return True
        if kept:  # no prompt would find it
            tree.drop(holder)
        self._give_back(holder)
        return True

    def _give_back(self, seq_id: int) -> None:
        self._awaited.discard(seq_id)
        self._tell_gone(seq_id)
        self._seq_ids.give_back(seq_id)

    def _tell(self, seq_id: int, scope: str, tokens: TokenArray) -> None:
        self._news[seq_id] = engine_pb2.CachedPrefix(
            entry=seq_id,
            token_ids=tokens.astype("<i4", copy=False).tobytes(),
            cache_scope=scope,
            tier=generation_pb2.CACHE_TIER_DEVICE,
            is_indivisible=self._sharing.kind is Sharing.CHECKPOINTS,
        )

    def _tell_gone(self, seq_id: int) -> None:
        if self._is_on:
            self._news[seq_id] = engine_pb2.CachedPrefix(entry=seq_id)
