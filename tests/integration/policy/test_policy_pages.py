"""Roles, limits and guardrails in pages."""

from __future__ import annotations

from typing import Any

import pytest
from harness.policy import bearer, refusal

from inferflux.common.contract.errors import InvalidArgument, from_rpc
from inferflux.v1 import guardrails_pb2, policy_pb2

from .conftest import Running


async def call(running: Running, method: str, request: Any) -> Any:
    return await getattr(running.policy.stranger, method)(request, metadata=bearer(running.admin), timeout=10)


async def make_some(running: Running) -> None:
    for name in ("paged-b", "paged-a", "paged-c"):
        await running.policy.create_key(running.admin, tenant=name)
        role = policy_pb2.Role(name=name, scopes=["models"])
        await call(running, "SetRole", policy_pb2.SetRoleRequest(role=role))
        await running.policy.limit(running.admin, f"tenant:{name}", requests_per_day=1)
        rules = guardrails_pb2.GuardrailRules(max_tokens=5)
        guardrails = guardrails_pb2.Guardrails(tenant=name, model="m", rules=rules)
        await call(running, "SetGuardrails", guardrails_pb2.SetGuardrailsRequest(guardrails=guardrails))


LISTS = {
    "ListRoles": (policy_pb2.ListRolesRequest, "roles"),
    "ListRateLimits": (policy_pb2.ListRateLimitsRequest, "rate_limits"),
    "ListGuardrails": (guardrails_pb2.ListGuardrailsRequest, "guardrails"),
    "ListApiKeys": (policy_pb2.ListApiKeysRequest, "api_keys"),
}


@pytest.mark.parametrize("method", LISTS)
@pytest.mark.parametrize("size", [1, 2])
async def test_the_pages_of_a_list_are_the_list(running: Running, method: str, size: int) -> None:
    await make_some(running)
    kind, field = LISTS[method]
    whole = await call(running, method, kind())
    assert not whole.next_page_token
    listed = list(getattr(whole, field))
    assert len(listed) > size
    told, token = [], ""
    while True:
        page = await call(running, method, kind(page_size=size, page_token=token))
        assert len(getattr(page, field)) <= size
        told += getattr(page, field)
        if not (token := page.next_page_token):
            break
    assert told == listed


@pytest.mark.parametrize("method", LISTS)
@pytest.mark.parametrize(
    ("asked", "field"), [({"page_size": 10_001}, "page_size"), ({"page_token": "ä b"}, "page_token")]
)
async def test_a_page_that_cannot_be_is_refused(
    running: Running, method: str, asked: dict[str, Any], field: str
) -> None:
    error = from_rpc(await refusal(call(running, method, LISTS[method][0](**asked))))
    assert isinstance(error, InvalidArgument)
    assert error.field == field
