"""The tiers below the KV cache, as a part of the engine: polled, searched, and told of in reports."""

from __future__ import annotations

from collections.abc import Iterable

from inferflux.v1 import engine_pb2, scheduler_pb2
from inferflux.worker.engine.memory.saved import SavedStates
from inferflux.worker.engine.plan.sequence import CACHE_TIERS, Sequence
from inferflux.worker.engine.tiers.rates import Tier
from inferflux.worker.engine.tiers.tiers import Tiers

from .parts import Outcome, Part

# No report is long for many prefixes that were found at the start, or are all told again.
MOST_TOLD = 16
# Sequence ids name what the KV cache has; these numbers are others.
_FIRST_ENTRY = 1 << 32


class LowerTiers(Part):
    """Host memory and disk."""

    def __init__(self, tiers: Tiers[Sequence], saved: SavedStates) -> None:
        self._tiers = tiers
        self._saved = saved

    def begin(self, sequence: Sequence, _request: scheduler_pb2.InferenceRequest) -> None:
        """Search for what another process has left of a request."""
        if sequence.origin.seeks_state and not sequence.computes_all:
            self._saved.search(sequence)

    def poll(self, _now_s: float) -> Iterable[Outcome]:
        self._tiers.poll()
        return ()

    def clear(self, scope: str, cleared: scheduler_pb2.CacheCleared) -> None:
        """Give up what no request waits for, of a scope if it is not empty, and write what that freed."""
        freed = self._tiers.clear(scope)
        cleared.host_states, cleared.host_bytes = freed[Tier.HOST]
        cleared.disk_states, cleared.disk_bytes = freed[Tier.DISK]

    def stats(self, step: engine_pb2.StepReport) -> None:
        tiers, stats = self._tiers, step.stats
        counts = tiers.take_counts()
        restored = self._saved.take_restore_s()
        for tier, of in ((Tier.HOST, stats.host), (Tier.DISK, stats.disk)):
            of.bytes, of.states = tiers.used(tier)
            of.hits = counts.hits[tier]
            of.evictions = counts.evictions[tier]
            if restored:
                of.restore_us.extend(int(seconds * 1e6) for where, seconds in restored if where is tier)
        stats.swap_bytes_used = tiers.preempted_bytes
        step.disk_error = tiers.take_error()
        step.cached.extend(self._moved())

    def close(self) -> None:
        """Leave the disk tier to the next process."""
        self._tiers.close()

    def _moved(self) -> Iterable[engine_pb2.CachedPrefix]:
        """Return the prefixes that left a tier since the last call, and those that came or moved, some if
        many."""
        for kept in self._tiers.take_moved(MOST_TOLD):
            cached = engine_pb2.CachedPrefix(entry=_FIRST_ENTRY + kept.number, cache_scope=kept.header.scope)
            if kept.is_kept:
                cached.token_ids = kept.tokens.astype("<i4", copy=False).tobytes()
                cached.tier = CACHE_TIERS[kept.tier]
                cached.is_indivisible = not self._tiers.is_divisible
            yield cached
