"""A well-behaved client: it streams all the time, and remembers when its tokens came."""

from __future__ import annotations

import asyncio
import time
from typing import Self

import grpc.aio

from benchmarks.load.grpc_target import generate_request
from inferflux.cli.stack import Stack
from inferflux.common.calls import grpc_client
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
        # When the latest chunk of the stream that is being read came; 0 before its first.
        self._chunk_at = 0.0
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
        """The longest time between two chunks of a stream in the next `window_s` seconds. A gap that has not
        ended by then counts as far as it goes; without any chunk the whole window does."""
        self._gaps_s.clear()
        await asyncio.sleep(window_s)
        open_s = time.monotonic() - self._chunk_at if self._chunk_at else 0.0
        return max([*self._gaps_s, open_s]) if self._gaps_s or open_s else window_s

    async def _run(self) -> None:
        metadata = grpc_client.outgoing(api_key=self._stack.api_key)
        while True:
            request = generate_request(self._stack.model_name, _PROMPT, _TOKENS)
            self._chunk_at = 0.0
            try:
                call = self._stub.Generate(request, metadata=metadata, timeout=60)
                async for response in call:
                    if response.chunk.token_ids:
                        self._note_chunk()
            except grpc.aio.AioRpcError as error:
                self.failures.append(f"{error.code().name}: {error.details()}")
                await asyncio.sleep(0.05)

    def _note_chunk(self) -> None:
        now = time.monotonic()
        if self._chunk_at:
            self._gaps_s.append(now - self._chunk_at)
        self._chunk_at = now
