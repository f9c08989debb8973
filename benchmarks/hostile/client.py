"""A well-behaved client: it streams all the time, and remembers when its tokens came."""

from __future__ import annotations

import asyncio
import time
from typing import Self

import grpc.aio

from benchmarks.grpc_target import generate_request
from inferflux.cli.stack import Stack
from inferflux.common import grpc_client
from inferflux.v1 import inference_pb2_grpc

_PROMPT = list(range(100, 116))
_TOKENS = 400


class WatchingClient:
    """An async context: streams one request after the other inside.

    Attributes:
        failures: errors of its requests; it sends the next one.
    """

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._channel = grpc_client.channel(stack.endpoint)
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._gaps_s: list[float] = []
        self.failures: list[str] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.close()

    async def longest_gap_s(self, window_s: float) -> float:
        """The longest time between two chunks of a stream in the next `window_s` seconds."""
        self._gaps_s.clear()
        await asyncio.sleep(window_s)
        return max(self._gaps_s, default=window_s)

    async def _run(self) -> None:
        metadata = grpc_client.outgoing(api_key=self._stack.api_key)
        while True:
            request = generate_request(self._stack.model_name, _PROMPT, _TOKENS)
            try:
                call = self._stub.Generate(request, metadata=metadata, timeout=60)
                last_at = 0.0
                async for response in call:
                    if not response.chunk.token_ids:
                        continue
                    now = time.monotonic()
                    if last_at:
                        self._gaps_s.append(now - last_at)
                    last_at = now
            except grpc.aio.AioRpcError as error:
                self.failures.append(f"{error.code().name}: {error.details()}")
                await asyncio.sleep(0.05)
