"""API keys for tests of all processes."""

from __future__ import annotations

from inferflux.cli.stack import Stack
from inferflux.common.calls import grpc_client
from inferflux.v1 import policy_pb2, policy_pb2_grpc


async def key_of(stack: Stack, tenant: str, *, deterministic: bool = False) -> str:
    """An API key of a tenant of the test's own."""
    address = stack.processes["policy"].spec.env["INFERFLUX_POLICY_LISTEN"]
    request = policy_pb2.CreateApiKeyRequest(
        tenant=tenant, name="test", scopes=["inference"], deterministic=deterministic
    )
    async with grpc_client.channel(address) as channel:
        stub = policy_pb2_grpc.PolicyServiceStub(channel)
        made = await stub.CreateApiKey(request, metadata=grpc_client.outgoing(api_key=stack.api_key))
    return str(made.secret)
