"""Tenants share cached prefixes with no other tenant unless they are told to."""

from __future__ import annotations

from inferflux.common.contract.callers.cache_scope import cache_scope_of
from inferflux.v1 import scheduler_pb2


def scope(tenant: str, cache_scope: str = "") -> str:
    return cache_scope_of(scheduler_pb2.InferenceRequest(tenant=tenant, cache_scope=cache_scope))


def test_a_tenant_shares_with_itself_alone() -> None:
    assert scope("acme") == scope("acme")
    assert scope("acme") != scope("other")


def test_tenants_that_name_the_same_scope_share() -> None:
    assert scope("acme", "staff") == scope("other", "staff")


def test_a_scope_with_a_tenants_name_is_not_the_tenants_own() -> None:
    assert scope("other", "acme") != scope("acme")
