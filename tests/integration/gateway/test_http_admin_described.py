"""/openapi.json describes what administrators call: schemathesis calls each path, well and badly."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import schemathesis
from harness.described import call_described
from harness.gateway import Backend, GatewayProcess
from harness.http_client import HttpClient
from harness.policy import PolicyProcess
from harness.scripted_admin import ScriptedAdmin
from harness.servers import ServerProcess
from schemathesis import Case, GenerationMode

from inferflux.gateway.http.docs.openapi import document
from inferflux.gateway.http.front.routes import ADMIN

# What becomes of a plain request, where it is not 200 each time: there is nothing to remove the second time.
REMOVES = {"RevokeApiKey", "DeleteRole", "DeleteRateLimit", "DeleteGuardrails"}


def plain(key_id: str) -> dict[str, dict[str, Any]]:
    """For each RPC a request that is served."""
    limit = {"subject": "tenant:described", "requests_per_day": 5}
    rules = {"blocked": [{"text": "forbidden"}]}
    return {
        "GetStatus": {},
        "GetFairness": {},
        "SetFairness": {"change": {"enable_preemption": True}},
        "DrainWorker": {"worker_id": "worker-1"},
        "UndrainWorker": {"worker_id": "worker-1"},
        "MoveRequest": {"request_id": "r", "worker_id": "worker-1"},
        "ClearCache": {"worker_id": "worker-1"},
        "LoadModel": {"name": "m"},
        "UnloadModel": {"name": "m"},
        "AddAdapter": {"model": "m", "adapter": "a", "path": "/a.gguf"},
        "RemoveAdapter": {"model": "m", "adapter": "a"},
        "Pull": {"source": "hf:someone/m"},
        "RemoveModel": {"name": "m"},
        "VerifyModel": {"name": "m"},
        "CreateApiKey": {"tenant": "described", "name": "x", "scopes": ["models"]},
        "ListApiKeys": {"tenant": "described", "page_size": 5},
        "RevokeApiKey": {"key_id": "key_0123456789abcdef"},
        "UpdateApiKey": {"api_key": {"key_id": key_id, "name": "y"}, "update_mask": "name"},
        "RotateApiKey": {"key_id": key_id},
        "ListRoles": {},
        "SetRole": {"role": {"name": "described", "scopes": ["models"]}},
        "DeleteRole": {"name": "described-2"},
        "ListRateLimits": {},
        "GetRateLimit": {"subject": "tenant:described"},
        "SetRateLimit": {"rate_limit": limit},
        "GetUsage": {"tenant": "described"},
        "DeleteRateLimit": {"subject": "tenant:described-2"},
        "ListGuardrails": {},
        "GetGuardrails": {"tenant": "described"},
        "SetGuardrails": {"guardrails": {"tenant": "described", "rules": rules}},
        "DeleteGuardrails": {"tenant": "described-2"},
        "CheckGuardrails": {"tenant": "described", "text": "is this forbidden?"},
        "ExportPolicy": {},
        "ImportPolicy": {"document": {"format": 1}},
    }


@dataclass(frozen=True)
class Administered:
    """A gateway and a policy service of these tests alone."""

    gateway: GatewayProcess
    key: str
    key_id: str


@pytest.fixture(scope="module")
def described() -> Any:
    return schemathesis.openapi.from_dict(document())


@pytest.fixture(scope="module")
async def administered(
    tmp_path_factory: pytest.TempPathFactory, nats_url: str, backend: Backend
) -> AsyncIterator[Administered]:
    directory = tmp_path_factory.mktemp("administered")
    key = "ifx_" + "d" * 43
    store = ServerProcess.valkey(directory / "valkey")
    store.start()
    policy = PolicyProcess(directory, store.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=key)
    gateway = GatewayProcess(directory, nats_url, f"127.0.0.1:{policy.port}")
    scheduler = ScriptedAdmin(backend.bus)
    scheduler.drains(0, is_drained=True)
    try:
        store.wait_ready()
        policy.start()
        await policy.wait_ready()
        gateway.start()
        await gateway.wait_ready()
        await scheduler.start()
        made = await policy.create_key(key, tenant="described")
        guardrails = plain("")["SetGuardrails"]
        assert (
            await HttpClient(gateway.http_port, key).post("/v1/admin/SetGuardrails", guardrails)
        ).status == 200
        yield Administered(gateway, key, made.api_key.key_id)
    finally:
        await scheduler.close()
        await gateway.close()
        await policy.close()
        store.kill()


@pytest.mark.parametrize("method", ADMIN)
async def test_what_administrators_call_is_described(
    administered: Administered, described: Any, method: str
) -> None:
    numbers = itertools.count()
    served = plain(administered.key_id)[method]

    def prepare(case: Case[Any]) -> None:
        if next(numbers) % 2:
            case.body = served

    statuses = await _call(administered, described, method, GenerationMode.POSITIVE, prepare)
    assert (404 if method in REMOVES else 200) in statuses


@pytest.mark.parametrize("method", ADMIN)
async def test_what_administrators_cannot_call_is_refused(
    administered: Administered, described: Any, method: str
) -> None:
    statuses = await _call(administered, described, method, GenerationMode.NEGATIVE)
    assert 400 in statuses


async def _call(
    administered: Administered,
    described: Any,
    method: str,
    mode: GenerationMode,
    prepare: Callable[[Case[Any]], None] = lambda _: None,
) -> Any:
    name = f"POST {ADMIN[method].path}"
    return await call_described(
        administered.gateway, described, name, mode, administered.key, prepare=prepare
    )
