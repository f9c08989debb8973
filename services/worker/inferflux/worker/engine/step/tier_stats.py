"""Statistics of the engine's tiers."""

from __future__ import annotations

from inferflux.v1 import engine_pb2
from inferflux.worker.engine.memory.saved import SavedStates
from inferflux.worker.engine.plan.sequence import CACHE_TIERS, Sequence
from inferflux.worker.engine.tiers.rates import Tier
from inferflux.worker.engine.tiers.tiers import Tiers

# No report is long for many prefixes that were found at the start, or are all told again.
MOST_TOLD = 16
# Sequence ids name what the KV cache has; these numbers are others.
_FIRST_ENTRY = 1 << 32


def cached_in(tiers: Tiers[Sequence]) -> list[engine_pb2.CachedPrefix]:
    """Return the prefixes that left a tier since the last call, and those that came or moved, some if
    many."""
    told = []
    for kept in tiers.take_moved(MOST_TOLD):
        cached = engine_pb2.CachedPrefix(entry=_FIRST_ENTRY + kept.number, cache_scope=kept.header.scope)
        if kept.is_kept:
            cached.token_ids = kept.tokens.astype("<i4", copy=False).tobytes()
            cached.tier = CACHE_TIERS[kept.tier]
            cached.is_indivisible = not tiers.is_divisible
        told.append(cached)
    return told


def tell_tiers(stats: engine_pb2.StepStats, tiers: Tiers[Sequence], saved: SavedStates) -> None:
    """Put what the tiers hold into a report, and what happened there since the last."""
    counts = tiers.take_counts()
    restored = saved.take_restore_s()
    for tier, of in ((Tier.HOST, stats.host), (Tier.DISK, stats.disk)):
        of.bytes, of.states = tiers.used(tier)
        of.hits = counts.hits[tier]
        of.evictions = counts.evictions[tier]
        if restored:
            of.restore_us.extend(int(seconds * 1e6) for where, seconds in restored if where is tier)
