"""A client of the gateway that keeps what it was sent and checks that streams are whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from inferflux.common.calls import grpc_client
from inferflux.v1 import (
    admin_pb2_grpc,
    cluster_pb2,
    cluster_pb2_grpc,
    generation_pb2,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2_grpc,
    tokens_pb2,
)

MODEL = "inferflux-demo"
Request = inference_pb2.GenerateRequest | inference_pb2.ChatRequest


@dataclass(slots=True)
class Answer:
    """A stream as received, in order and without gaps, or it fails."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    terminal: tokens_pb2.Finished | None = None
    first_token: asyncio.Event = field(default_factory=asyncio.Event)
    epochs: set[int] = field(default_factory=set)
    worker_ids: list[str] = field(default_factory=list)

    def add(self, chunk: tokens_pb2.TokenChunk) -> None:
        assert self.terminal is None, "a chunk after the terminal one"
        if chunk.token_ids:
            assert chunk.offset == len(self.token_ids), "a gap or a repeat"
            self.token_ids.extend(chunk.token_ids)
            self.epochs.add(chunk.epoch)
            self.first_token.set()
        self.text += chunk.text
        if chunk.HasField("started"):
            self.worker_ids.append(chunk.started.worker_id)
        if chunk.HasField("finished"):
            self.terminal = chunk.finished


class Client:
    """Calls with an API key. `close` it."""

    def __init__(self, endpoint: str, api_key: str) -> None:
        self.channel = grpc_client.channel(endpoint)
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)
        self.cluster = cluster_pb2_grpc.ClusterServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        self.api_key = api_key

    def metadata(self, request_id: str = "") -> list[tuple[str, str]]:
        pairs = [("authorization", f"Bearer {self.api_key}")]
        return [*pairs, ("x-request-id", request_id)] if request_id else pairs

    async def ask(
        self,
        request: Request,
        *,
        request_id: str = "",
        answer: Answer | None = None,
    ) -> Answer:
        """Read a generation to its end.

        Raises:
            grpc.aio.AioRpcError: it ended with an error.
        """
        answer = answer or Answer()
        metadata = self.metadata(request_id)
        call = (
            self.inference.Chat(request, metadata=metadata)
            if isinstance(request, inference_pb2.ChatRequest)
            else self.inference.Generate(request, metadata=metadata)
        )
        try:
            async for response in call:
                answer.add(response.chunk)
        finally:
            call.cancel()
        return answer

    async def cancel(self, request_id: str) -> None:
        """Have a request that is queued or runs end.

        Raises:
            grpc.aio.AioRpcError: there is none.
        """
        await self.inference.Cancel(
            inference_pb2.CancelRequest(request_id=request_id), metadata=self.metadata()
        )

    async def status(self) -> cluster_pb2.GetStatusResponse:
        return await self.cluster.GetStatus(cluster_pb2.GetStatusRequest(), metadata=self.metadata())

    async def until_status(
        self, condition: Callable[[cluster_pb2.GetStatusResponse], bool], timeout_s: float = 20.0
    ) -> None:
        """Return once the cluster's status fulfils `condition`."""
        async with asyncio.timeout(timeout_s):
            while not condition(await self.status()):
                await asyncio.sleep(0.02)

    async def until_idle(self) -> None:
        """Return once nothing is queued, running, or held by a slot or a KV cell."""
        await self.until_status(
            lambda s: (
                s.HasField("scheduler")
                and s.scheduler.queued == 0
                and s.scheduler.running == 0
                and all(
                    w.status.kv_cells_reserved == 0
                    and not w.status.residents
                    and all(slot.state == "free" for slot in w.slots)
                    for w in s.scheduler.workers
                )
            )
        )

    async def close(self) -> None:
        await self.channel.close()


def prompt(
    text: str = "Tell me", *, max_tokens: int = 64, model: str = MODEL, **sampling: Any
) -> inference_pb2.GenerateRequest:
    """A greedy request that always gives `max_tokens` tokens, unless `sampling` says otherwise."""
    return inference_pb2.GenerateRequest(
        model=model,
        text=text,
        params=generation_pb2.GenerationParams(
            max_tokens=max_tokens,
            ignore_eos=True,
            sampling=generation_pb2.SamplingParams(**({"temperature": 0.0} | sampling)),
        ),
    )


def countdown(start: int, end: int = 1) -> inference_pb2.ChatRequest:
    """About a hundred tokens of which the demo model is sure.

    Its second choice is always far behind, so what else is in the batch, which changes the last bits of the
    logits, cannot change the text: `tests/e2e/test_countdowns.py` holds that.
    """
    content = f"Count down from {start} to {end}."
    return inference_pb2.ChatRequest(
        model=MODEL,
        messages=[inference_pb2.ChatMessage(role="user", content=content)],
        params=generation_pb2.GenerationParams(
            max_tokens=300, sampling=generation_pb2.SamplingParams(temperature=0.0)
        ),
    )


_UNDISTURBED: dict[bytes, Answer] = {}


async def undisturbed(client: Client, requests: Sequence[Request]) -> list[Answer]:
    """What the requests answer when nothing goes wrong. The client is asked for each once a session.

    Only for requests that have the same answer on every stack, as `countdown`.
    """
    for request in requests:
        key = request.SerializeToString(deterministic=True)
        if key not in _UNDISTURBED:
            _UNDISTURBED[key] = await client.ask(request)
    return [_UNDISTURBED[request.SerializeToString(deterministic=True)] for request in requests]


async def status_of(call: AsyncIterator[Any]) -> grpc.aio.AioRpcError:
    """The error a stream ends with; fails if it ends well."""
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call succeeded")


async def in_the_end(client: Client) -> None:
    """Return when a request is served; until then it is refused as one that may be sent again."""
    async with asyncio.timeout(60):
        while True:
            try:
                await client.ask(prompt("Once", max_tokens=2))
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.1)
            else:
                return
