"""One more gateway of a stack, which a test may kill."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from harness.client import Client
from harness.starting import start

from inferflux.cli.stack import Stack
from inferflux.cli.stack.servers import free_port
from inferflux.v1 import cluster_pb2, model_pb2


@dataclass(frozen=True)
class AnotherGateway:
    """A process of its own."""

    endpoint: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.process.kill()
        self.process.wait()


@asynccontextmanager
async def another_gateway(stack: Stack) -> AsyncIterator[AnotherGateway]:
    """A gateway that serves, on free ports and without HTTP, beside the stack's own."""
    listen, metrics = free_port(), free_port()
    own = {
        "INFERFLUX_GATEWAY_LISTEN": f"127.0.0.1:{listen}",
        "INFERFLUX_GATEWAY_HTTP_LISTEN": "",
        "INFERFLUX_METRICS_LISTEN": f"127.0.0.1:{metrics}",
    }
    spec = next(process.spec for process in stack.processes.values() if process.spec.kind == "gateway")
    env = {**os.environ, **spec.env, **own}
    process = start("inferflux.gateway", env=env, stderr=subprocess.DEVNULL)
    gateway = AnotherGateway(f"127.0.0.1:{listen}", process)
    try:
        asked = model_pb2.ListModelsRequest()
        client = Client(gateway.endpoint, stack.api_key)
        await client.cluster.GetStatus(
            cluster_pb2.GetStatusRequest(), metadata=client.metadata(), wait_for_ready=True, timeout=20
        )
        # It knows the models once it has read a worker's heartbeat.
        async with asyncio.timeout(20):
            while not (await client.models.ListModels(asked, metadata=client.metadata())).models:
                await asyncio.sleep(0.02)
        await client.close()
        yield gateway
    finally:
        gateway.kill()
