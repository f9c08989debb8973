"""Tokens of an issuer in place of API keys, through a gateway and policy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from harness.gateway import Backend, Client, GatewayProcess, text_of, until
from harness.http_client import HttpClient
from harness.issuers import ScriptedIssuer, issuers_variables, scripted
from harness.oidc_keys import SigningKey
from harness.policy import PolicyProcess

from inferflux.common.calls import grpc_client
from inferflux.common.contract.callers.credentials import subject_id
from inferflux.common.contract.errors import PermissionDenied, Unauthenticated, from_rpc
from inferflux.v1 import policy_pb2, policy_pb2_grpc


@dataclass(frozen=True)
class Front:
    """A gateway whose policy takes the tokens of an issuer."""

    gateway: GatewayProcess
    policy: PolicyProcess
    issuer: ScriptedIssuer
    admin: str

    def client(self, **claims: Any) -> Client:
        return Client(self.gateway, self.issuer.token(**claims))


@pytest.fixture
async def front(
    tmp_path: Path, nats_url: str, valkey_url: str, backend: Backend, admin_key: str
) -> AsyncIterator[Front]:
    async with scripted(SigningKey.ec()) as issuer:
        fields = {
            "issuer": issuer.issuer,
            "audiences": ["inferflux"],
            "tenant": "acme",
            "default_roles": ["user"],
            "scopes_claim": "scope",
            "allowed_scopes": ["inference", "models", "policy"],
        }
        variables = issuers_variables(fields) | {"INFERFLUX_POLICY_BOOTSTRAP_KEY": admin_key}
        policy = PolicyProcess(tmp_path, valkey_url, **variables)
        gateway = GatewayProcess(tmp_path, nats_url, f"127.0.0.1:{policy.port}")
        try:
            policy.start()
            await policy.wait_ready()
            gateway.start()
            await gateway.wait_ready()
            await Client(gateway, admin_key).sees(backend.card.name)
            yield Front(gateway, policy, issuer, admin_key)
        finally:
            await gateway.close()
            await policy.close()


async def test_a_token_does_what_a_key_does_and_the_audit_line_says_whose_it_was(
    front: Front, backend: Backend
) -> None:
    stream = front.client(sub="alice").generate("by-token")
    await backend.finish(await backend.job("by-token"), n=3)
    assert text_of(await stream.rest())
    await until(lambda: bool(front.gateway.audit("by-token")))
    (line,) = front.gateway.audit("by-token")
    assert (line["tenant"], line["issuer"], line["subject"]) == ("acme", front.issuer.issuer, "alice")
    assert (line["key_id"], line["completion_tokens"]) == (subject_id(front.issuer.issuer, "alice"), 3)


async def test_a_token_is_taken_over_http_in_either_header(front: Front) -> None:
    token = front.issuer.token()
    http = HttpClient(front.gateway.http_port, token)
    assert (await http.get("/v1/models")).status == 200
    assert (
        await HttpClient(front.gateway.http_port, "").get("/v1/models", **{"x-api-key": token})
    ).status == 200


async def test_a_token_that_is_not_taken_is_a_401_that_says_no_more(front: Front) -> None:
    for token in (
        front.issuer.token(exp=1),
        front.issuer.token(aud="other"),
        front.issuer.token(SigningKey.ec()),
    ):
        error = await Client(front.gateway, token).generate("refused-token").error()
        assert isinstance(error, Unauthenticated)
        assert (error.reason, error.message) == ("INVALID_TOKEN", "this token is not accepted")
        answer = await HttpClient(front.gateway.http_port, token).get("/v1/models")
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert token.rpartition(".")[2] not in front.gateway.log_path.read_text()


async def test_a_subject_is_held_to_limits_of_its_own(front: Front) -> None:
    limited = f"key:{subject_id(front.issuer.issuer, 'limited')}"
    await front.policy.limit(front.admin, limited, requests_per_minute=1)
    http = HttpClient(front.gateway.http_port, front.issuer.token(sub="limited"))
    body = {"model": "demo", "prompt": "hello"}
    assert (await http.post("/v1/tokenize", body)).status == 200
    assert (await http.post("/v1/tokenize", body)).status == 429
    other = HttpClient(front.gateway.http_port, front.issuer.token(sub="another"))
    assert (await other.post("/v1/tokenize", body)).status == 200


async def test_a_token_with_the_scope_manages_policy_through_the_gateway(front: Front) -> None:
    stub = policy_pb2_grpc.PolicyServiceStub(front.gateway.channel)
    request = policy_pb2.ListRolesRequest()
    manager = grpc_client.outgoing(api_key=front.issuer.token(scope="policy"))
    assert (await stub.ListRoles(request, metadata=manager)).roles
    user = grpc_client.outgoing(api_key=front.issuer.token())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ListRoles(request, metadata=user)
    assert isinstance(from_rpc(caught.value), PermissionDenied)


async def test_without_its_issuer_a_new_key_is_refused_and_known_ones_go_on(front: Front) -> None:
    known = front.client()
    assert await known.model_names()
    await front.issuer.stop()
    assert await known.model_names()
    error = (
        await Client(front.gateway, front.issuer.token(SigningKey.ec("new"))).generate("no-issuer").error()
    )
    assert isinstance(error, Unauthenticated)
