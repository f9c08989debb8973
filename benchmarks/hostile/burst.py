"""Many requests at the same moment: none may be refused while the queue has room."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass

import grpc.aio

from inferflux.cli.stack import Stack
from inferflux.common.calls import grpc_client
from inferflux.v1 import generation_pb2, inference_pb2, inference_pb2_grpc

_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Burst:
    """Outcomes of the requests.

    Attributes:
        outcomes: how many ended how: "ok", or a status and its message.
    """

    outcomes: Counter[str]
    seconds: float

    @property
    def n_refused(self) -> int:
        return sum(self.outcomes.values()) - self.outcomes["ok"]


async def burst(stack: Stack, count: int, deadline_s: float | None = None) -> Burst:
    """Send `count` chats at once over one connection, and wait for all.

    Args:
        deadline_s: of each; a scheduler refuses early what it expects to come too late for it.

    Raises:
        TimeoutError: they are not done within five minutes.
    """
    metadata = grpc_client.outgoing(api_key=stack.api_key)
    outcomes: Counter[str] = Counter()
    async with grpc_client.channel(stack.endpoint) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)

        async def one(number: int) -> None:
            request = inference_pb2.ChatRequest(
                model=stack.model_name,
                messages=[inference_pb2.ChatMessage(role="user", content=f"What is {number} + 1?")],
                params=generation_pb2.GenerationParams(max_tokens=4),
            )
            try:
                async for _ in stub.Chat(request, metadata=metadata, timeout=deadline_s):
                    pass
            except grpc.aio.AioRpcError as error:
                outcomes[f"{error.code().name}: {error.details()}"] += 1
            else:
                outcomes["ok"] += 1

        started = time.monotonic()
        async with asyncio.timeout(_LIMIT_S):
            await asyncio.gather(*(one(number) for number in range(count)))
        return Burst(outcomes, time.monotonic() - started)
