"""Names of the ways in which requests share cached prefixes (pure)."""

from __future__ import annotations

from inferflux.v1 import scheduler_pb2


def sharing_name(kind: scheduler_pb2.PrefixSharing.ValueType) -> str:
    """`full`, `window`, `checkpoints` or `none`; `unspecified` for what is not known."""
    if kind not in scheduler_pb2.PrefixSharing.values():
        return "unspecified"
    return scheduler_pb2.PrefixSharing.Name(kind).removeprefix("PREFIX_SHARING_").lower()
