"""Which requests share cached prefixes: worker, index and scheduler name a request's scope alike (pure)."""

from __future__ import annotations

from inferflux.common import checks
from inferflux.v1 import scheduler_pb2


def cache_scope_of(request: scheduler_pb2.InferenceRequest) -> str:
    """The scope of a request: its tenant's own unless it names another.

    A scope that a request names is never a tenant's own, whatever it is called.
    """
    if request.cache_scope:
        return f"scope/{request.cache_scope}"
    return scope_of_tenant(request.tenant)


def scope_of_tenant(tenant: str) -> str:
    """The scope that is a tenant's own."""
    return f"tenant/{tenant}"


def check_cache_scope(cache_scope: str, field: str) -> None:
    """Raises InvalidArgument when a scope is not empty and has characters that a tenant may not have."""
    if cache_scope:
        checks.check_token(cache_scope, field)
