"""Scope within which requests share cached prefixes, alike in worker, index and scheduler (pure).

What an adapter has computed is of use to requests of the same adapter alone. So its digest is a part of
the scope, and whatever is kept by scope is kept by adapter: cached prefixes, state in host memory and on
disk, the fleet's prefix index, the answer cache.
"""

from __future__ import annotations

import struct

from inferflux.common.contract import checks
from inferflux.v1 import scheduler_pb2

# No tenant and no scope that is named has this character.
_ADAPTER = "#"


def cache_scope_of(request: scheduler_pb2.InferenceRequest) -> str:
    """The scope of a request: its tenant's own unless it names another, and of its adapter's state alone.

    A scope that a request names is never a tenant's own, whatever it is called.
    """
    scope = f"scope/{request.cache_scope}" if request.cache_scope else scope_of_tenant(request.tenant)
    return f"{scope}{_ADAPTER}{request.adapter_digest}" if request.adapter_digest else scope


def prefix_tokens(request: scheduler_pb2.InferenceRequest, most: int | None = None) -> bytes:
    """The tokens that a request begins with, as CachedPrefix has them; no more than `most`."""
    ids = [*request.prompt_token_ids, *request.generated_token_ids][:most]
    return struct.pack(f"<{len(ids)}i", *ids)


def scope_of_tenant(tenant: str) -> str:
    """The scope that is a tenant's own."""
    return f"tenant/{tenant}"


def is_within(scope: str, wanted: str) -> bool:
    """True if `scope` is the `wanted` one, or that of an adapter there; an empty one is every scope."""
    return wanted in ("", scope) or scope.startswith(wanted + _ADAPTER)


def check_cache_scope(cache_scope: str, field: str) -> None:
    """Raises InvalidArgument when a scope is not empty and has characters that a tenant may not have."""
    if cache_scope:
        checks.check_token(cache_scope, field)
