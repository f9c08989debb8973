"""What the engine reports of its tiers."""

from __future__ import annotations

from inferflux.v1 import engine_pb2

from .saved import SavedStates
from .sequence import Sequence
from .tiers.rates import Tier
from .tiers.tiers import Tiers


def tell_tiers(stats: engine_pb2.StepStats, tiers: Tiers[Sequence], saved: SavedStates) -> None:
    """Put what the tiers hold into a report, and what happened there since the last."""
    counts = tiers.take_counts()
    restored = saved.take_restore_s()
    for tier, of in ((Tier.HOST, stats.host), (Tier.DISK, stats.disk)):
        of.bytes, of.states = tiers.used(tier)
        of.hits = counts.hits[tier]
        of.evictions = counts.evictions[tier]
        of.restore_us.extend(int(seconds * 1e6) for where, seconds in restored if where is tier)
