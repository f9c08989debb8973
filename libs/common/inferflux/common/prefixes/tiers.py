"""Names of the tiers in which a cached prefix is found (pure)."""

from __future__ import annotations

from inferflux.v1 import generation_pb2


def tier_name(tier: generation_pb2.CacheTier.ValueType) -> str:
    """`device` (the KV cache), `host` or `disk`; empty if nothing was cached, and for what is not known."""
    if tier == generation_pb2.CACHE_TIER_UNSPECIFIED or tier not in generation_pb2.CacheTier.values():
        return ""
    return generation_pb2.CacheTier.Name(tier).removeprefix("CACHE_TIER_").lower()
