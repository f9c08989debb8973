"""Every RPC and every route: without a key, with a key that lacks the scope, with a key that has it alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_reflection.v1alpha import reflection_pb2
from harness.gateway import GatewayProcess
from harness.http_client import HttpClient
from harness.policy import PolicyProcess, bearer
from harness.websocket_client import WebSocket

from inferflux.common.calls.grpc_rules import OPEN_RULES
from inferflux.common.calls.service_key import SERVICE
from inferflux.common.contract.callers.policy_methods import FOR_SERVICES
from inferflux.common.contract.callers.scopes import Scope, expanded
from inferflux.common.contract.errors import from_rpc
from inferflux.gateway.grpc.rules import rules as gateway_rules
from inferflux.gateway.http.front.routes import ADMIN, ROUTES, RouteRule
from inferflux.policy.rules import RULES as POLICY_RULES
from inferflux.v1 import admin_pb2, cluster_pb2, embedding_pb2, inference_pb2, model_pb2, policy_pb2

GATEWAY_RULES = gateway_rules(1000)
SERVICES = {
    service.full_name: service
    for file in (admin_pb2, cluster_pb2, embedding_pb2, inference_pb2, model_pb2, policy_pb2, reflection_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
}
REFUSALS = {"UNAUTHENTICATED", "PERMISSION_DENIED"}

KeyWith = Callable[..., Awaitable[str]]


@pytest.fixture(scope="session")
async def key_with(policy: PolicyProcess, admin_key: str) -> KeyWith:
    """A key with these scopes."""
    made: dict[frozenset[str], str] = {}

    async def key(*scopes: str) -> str:
        if (wanted := frozenset(scopes)) not in made:
            made[wanted] = (await policy.create_key(admin_key, scopes=tuple(scopes))).secret
        return made[wanted]

    return key


def without(scope: str) -> list[str]:
    """All scopes that do not include this one."""
    return [other for other in Scope if scope not in expanded([other])]


async def called(port: int, path: str, key: str) -> tuple[str, str]:
    """Code and reason of a call with an empty message."""
    service, _, name = path.removeprefix("/").rpartition("/")
    is_stream = SERVICES[service].methods_by_name[name].server_streaming
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            method: Any = (channel.unary_stream if is_stream else channel.unary_unary)(path)
            call = method(b"", metadata=bearer(key), timeout=15)
            await (call.read() if is_stream else call)
        except grpc.aio.AioRpcError as error:
            return error.code().name, from_rpc(error).reason
    return "OK", ""


@pytest.mark.parametrize("server", ["gateway", "policy"])
def test_every_method_has_a_rule(server: str) -> None:
    own = {"gateway": GATEWAY_RULES, "policy": POLICY_RULES}[server]
    reflection = "grpc.reflection.v1alpha.ServerReflection"
    served = {"policy": ["inferflux.v1.PolicyService", reflection]}.get(server, sorted(SERVICES))
    paths = {f"/{name}/{method.name}" for name in served for method in SERVICES[name].methods}
    passed_on_by_none = {f"/inferflux.v1.PolicyService/{n}" for n in FOR_SERVICES}
    assert set(own) == (paths if server == "policy" else paths - passed_on_by_none)
    assert all(rule.scope in {*Scope, SERVICE} for rule in own.values())


@pytest.mark.parametrize("path", sorted(GATEWAY_RULES))
async def test_a_gateways_method_needs_its_scope_and_no_other(
    gateway: GatewayProcess, key_with: KeyWith, path: str
) -> None:
    scope = GATEWAY_RULES[path].scope
    assert await called(gateway.port, path, "") == ("UNAUTHENTICATED", "NO_CREDENTIAL")
    wrong = await called(gateway.port, path, await key_with(*without(scope)))
    assert wrong == ("PERMISSION_DENIED", "MISSING_SCOPE")
    code, _ = await called(gateway.port, path, await key_with(scope))
    assert code not in {*REFUSALS, "UNIMPLEMENTED", "INTERNAL"}


@pytest.mark.parametrize("path", sorted(p for p, rule in POLICY_RULES.items() if rule.scope != SERVICE))
async def test_a_method_of_policy_needs_its_scope_and_no_other(
    policy: PolicyProcess, key_with: KeyWith, path: str
) -> None:
    scope = POLICY_RULES[path].scope
    assert await called(policy.port, path, "") == ("UNAUTHENTICATED", "NO_CREDENTIAL")
    wrong = await called(policy.port, path, await key_with(*without(scope)))
    assert wrong == ("PERMISSION_DENIED", "MISSING_SCOPE")
    code, _ = await called(policy.port, path, await key_with(scope))
    assert code not in {*REFUSALS, "UNIMPLEMENTED", "INTERNAL"}


@pytest.mark.parametrize("path", sorted(p for p, rule in POLICY_RULES.items() if rule.scope == SERVICE))
async def test_what_services_call_no_key_opens(
    policy: PolicyProcess, gateway: GatewayProcess, key_with: KeyWith, path: str
) -> None:
    everything = await key_with(*Scope)
    for key in ("", everything):
        assert await called(policy.port, path, key) == ("UNAUTHENTICATED", "NO_SERVICE_KEY")
        assert (await called(gateway.port, path, key))[0] == "UNIMPLEMENTED"


@pytest.mark.parametrize("path", sorted(OPEN_RULES))
def test_what_strangers_may_call_is_health(path: str) -> None:
    assert path.startswith("/grpc.health.v1.Health/")


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_a_route_needs_its_scope_and_no_other(
    gateway: GatewayProcess, key_with: KeyWith, route: RouteRule
) -> None:
    if route.scope is None:
        assert await status_of(gateway, route, "") == 200
        return
    assert await status_of(gateway, route, "") == 401
    assert await status_of(gateway, route, await key_with(*without(route.scope))) == 403
    answered = await status_of(gateway, route, await key_with(route.scope))
    # What is asked for with an empty message may not be there. Nor is a scheduler.
    assert answered in ({200, 400, 404, 503} if route in ADMIN.values() else {101, 200, 400, 501})


async def status_of(gateway: GatewayProcess, route: RouteRule, key: str) -> int:
    path = route.path.replace("{model:path}", "demo")
    if route.method == "WEBSOCKET":
        async with WebSocket(gateway.http_port, path, key=key) as socket:
            return socket.status
    body: dict[str, str] | None = {} if route.method == "POST" else None
    return (await HttpClient(gateway.http_port, key).call(route.method, path, body)).status
