"""The gateway's channel to several policy processes, of which one is lost."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import grpc.aio
import pytest
from harness.policy import AsService, PolicyProcess

from inferflux.gateway.policy.policy_channel import open_policy_channel
from inferflux.policy.decide import keys
from inferflux.v1 import policy_pb2, policy_pb2_grpc


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_calls_go_to_the_other_one_in_the_end(tmp_path: Path, valkey_url: str, how: str) -> None:
    admin = keys.generate()
    both = [PolicyProcess(tmp_path, valkey_url, INFERFLUX_POLICY_BOOTSTRAP_KEY=admin) for _ in range(2)]
    for policy in both:
        policy.start()
    for policy in both:
        await policy.wait_ready()
    channel = open_policy_channel(",".join(f"127.0.0.1:{policy.port}" for policy in both), None)
    stub = AsService(policy_pb2_grpc.PolicyServiceStub(channel))

    async def is_admitted() -> bool:
        request = policy_pb2.AdmitRequest(credential=admin, scope="inference", request_id="r")
        try:
            await stub.Admit(request, timeout=1)
        except grpc.aio.AioRpcError:
            return False
        return True

    try:
        assert all([await is_admitted() for _ in range(10)])
        both[0].signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        async with asyncio.timeout(60):
            while not all([await is_admitted() for _ in range(10)]):
                pass
    finally:
        await channel.close()
        for policy in both:
            await policy.close()
