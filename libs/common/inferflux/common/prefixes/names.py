"""Names of the tiers that cached prefixes are in, and of the ways in which requests share them (pure)."""

from __future__ import annotations

from inferflux.v1 import generation_pb2, scheduler_pb2


def sharing_name(kind: scheduler_pb2.PrefixSharing.ValueType) -> str:
    """`full`, `window`, `checkpoints` or `none`; `unspecified` for what is not known."""
    if kind not in scheduler_pb2.PrefixSharing.values():
        return "unspecified"
    return scheduler_pb2.PrefixSharing.Name(kind).removeprefix("PREFIX_SHARING_").lower()


def tier_name(tier: generation_pb2.CacheTier.ValueType) -> str:
    """`device` (the KV cache), `host` or `disk`; empty if nothing was cached, and for what is not known."""
    if tier == generation_pb2.CACHE_TIER_UNSPECIFIED or tier not in generation_pb2.CacheTier.values():
        return ""
    return generation_pb2.CacheTier.Name(tier).removeprefix("CACHE_TIER_").lower()
