"""The gateway's API as the commands use it: errors of ours instead of gRPC's, chunks instead of responses."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from inferflux.common import grpc_client
from inferflux.common.errors import InferFluxError, Unavailable, from_rpc
from inferflux.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    cluster_pb2,
    cluster_pb2_grpc,
    generation_pb2,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    scheduler_pb2,
    tokens_pb2,
)

from .errors import CommandError
from .resuming import Call, read, read_resuming
from .target import Target

_Reply = TypeVar("_Reply")
_UNARY_LIMIT_S = 10.0


class _Told:
    """A chat of which is told what the text of each chunk is."""

    def __init__(self, call: Any, on_delta: Callable[[inference_pb2.ChatDelta], None]) -> None:
        self._call = call
        self._on_delta = on_delta

    async def __aiter__(self) -> AsyncIterator[inference_pb2.ChatResponse]:
        async for response in self._call:
            self._on_delta(response.delta)
            yield response

    def cancel(self) -> bool:
        return bool(self._call.cancel())


class Client:
    """One connection to a gateway. Use as an async context manager.

    Every method raises InferFluxError, with a message for people, for whatever the call ended with.
    """

    def __init__(self, target: Target) -> None:
        self._endpoint = target.endpoint
        self._api_key = target.api_key
        self._channel = grpc_client.channel(target.endpoint)
        self._inference = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._models = model_pb2_grpc.ModelServiceStub(self._channel)
        self._cluster = cluster_pb2_grpc.ClusterServiceStub(self._channel)
        self._admin = admin_pb2_grpc.AdminServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    def chat(
        self,
        messages: Sequence[inference_pb2.ChatMessage],
        *,
        model: str,
        params: generation_pb2.GenerationParams,
        priority: int = 0,
        request_id: str = "",
        resume_window_s: int = 0,
        skip_answer_cache: bool = False,
        tools: Sequence[inference_pb2.Tool] = (),
        on_delta: Callable[[inference_pb2.ChatDelta], None] = lambda _delta: None,
        on_resumed: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[tokens_pb2.TokenChunk, None]:
        """The answer to a conversation. Closing the generator early cancels the request.

        Args:
            on_delta: with tools, told before each chunk what its text is. A stream that was resumed does not
                tell.
            resume_window_s: how long a stream whose connection is lost is resumed; 0: not at all.
            on_resumed: told each time.
        """
        request = inference_pb2.ChatRequest(
            model=model,
            messages=messages,
            params=params,
            priority=priority,
            resume_window_s=resume_window_s,
            skip_answer_cache=skip_answer_cache,
            tools=tools,
        )

        def chat(request: inference_pb2.ChatRequest, **options: Any) -> Call:
            call = self._inference.Chat(request, **options)
            return _Told(call, on_delta) if tools else call

        return self._chunks(chat, request, request_id, on_resumed)

    def generate(
        self,
        prompt: str,
        *,
        model: str,
        params: generation_pb2.GenerationParams,
        priority: int = 0,
        request_id: str = "",
        resume_window_s: int = 0,
        skip_answer_cache: bool = False,
        on_resumed: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[tokens_pb2.TokenChunk, None]:
        """The continuation of a text; the last two arguments are as in `chat`. Closing the generator early
        cancels the request."""
        request = inference_pb2.GenerateRequest(
            model=model,
            text=prompt,
            params=params,
            priority=priority,
            resume_window_s=resume_window_s,
            skip_answer_cache=skip_answer_cache,
        )
        return self._chunks(self._inference.Generate, request, request_id, on_resumed)

    async def resume(self, request_id: str, *, offset: int) -> AsyncGenerator[tokens_pb2.TokenChunk, None]:
        """What a request has said and will say from a token on. Closing the generator early only ends this
        reading."""
        with self._readable_errors():
            async with aclosing(read(self._resume(request_id, offset))) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def cancel(self, request_id: str) -> None:
        """End a queued or running request of this key's tenant."""
        await self._call(self._inference.Cancel, inference_pb2.CancelRequest(request_id=request_id))

    async def models(self) -> list[model_pb2.Model]:
        """What is served."""
        reply = await self._call(self._models.ListModels, model_pb2.ListModelsRequest())
        return list(reply.models)

    async def only_model(self) -> str:
        """The name of the model that is served, the first one where there are several.

        Raises:
            CommandError: none is served.
        """
        served = [model.card.name for model in await self.models() if model.workers]
        if not served:
            raise CommandError(f"{self._endpoint} serves no model at present")
        return served[0]

    async def status(self) -> cluster_pb2.GetStatusResponse:
        """Services, workers, slots and queue."""
        return await self._call(self._cluster.GetStatus, cluster_pb2.GetStatusRequest())

    async def fairness(self) -> scheduler_pb2.Fairness:
        """The settings of the fairness controller."""
        reply = await self._call(self._admin.GetFairness, admin_pb2.GetFairnessRequest())
        return reply.fairness

    async def set_fairness(self, change: scheduler_pb2.SetFairness) -> scheduler_pb2.Fairness:
        """Change settings of the fairness controller; returns all of them."""
        reply = await self._call(self._admin.SetFairness, admin_pb2.SetFairnessRequest(change=change))
        return reply.fairness

    async def drain(
        self, worker_id: str, *, hand_over_after_ms: int | None = None
    ) -> AsyncGenerator[scheduler_pb2.DrainProgress, None]:
        """Have a worker take nothing new, and follow it. Closing the generator early does not undo it."""
        request = admin_pb2.DrainWorkerRequest(worker_id=worker_id, hand_over_after_ms=hand_over_after_ms)
        call = self._admin.DrainWorker(request, metadata=self._metadata())
        try:
            with self._readable_errors():
                async for response in call:
                    yield response.progress
        finally:
            call.cancel()

    async def undrain(self, worker_id: str) -> scheduler_pb2.DrainProgress:
        """Have a worker take requests again."""
        request = admin_pb2.UndrainWorkerRequest(worker_id=worker_id)
        reply = await self._call(self._admin.UndrainWorker, request)
        return reply.progress

    async def clear_cache(self, request: admin_pb2.ClearCacheRequest) -> admin_pb2.ClearCacheResponse:
        """Clear caches of workers, and the answer cache; says of each what was cleared, or why not."""
        return await self._call(self._admin.ClearCache, request)

    async def _call(self, rpc: Callable[..., Awaitable[_Reply]], request: Message) -> _Reply:
        with self._readable_errors():
            return await rpc(request, metadata=self._metadata(), timeout=_UNARY_LIMIT_S)

    async def _chunks(
        self,
        rpc: Callable[..., Call],
        request: inference_pb2.ChatRequest | inference_pb2.GenerateRequest,
        request_id: str,
        on_resumed: Callable[[], None],
    ) -> AsyncGenerator[tokens_pb2.TokenChunk, None]:
        # To be resumed, a request has an id that is known here.
        window_s = request.resume_window_s
        request_id = request_id or (uuid.uuid4().hex if window_s else "")
        metadata = self._metadata(request_id)
        chunks = (
            read_resuming(
                lambda: rpc(request, metadata=metadata),
                lambda offset: self._resume(request_id, offset),
                lambda: self.cancel(request_id),
                window_s=window_s,
                on_resumed=on_resumed,
            )
            if window_s
            else read(rpc(request, metadata=metadata))
        )
        with self._readable_errors():
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk

    def _resume(self, request_id: str, offset: int) -> Call:
        request = inference_pb2.ResumeRequest(request_id=request_id, offset=offset)
        call: Call = self._inference.Resume(request, metadata=self._metadata())
        return call

    def _metadata(self, request_id: str = "") -> tuple[tuple[str, str], ...]:
        return grpc_client.outgoing(api_key=self._api_key, request_id=request_id)

    @contextmanager
    def _readable_errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise self._readable(error) from None

    def _readable(self, error: grpc.aio.AioRpcError) -> InferFluxError:
        """gRPC's own words for "nothing answers" are long and about sockets."""
        details = error.details() or ""
        if error.code() is grpc.StatusCode.UNAVAILABLE and "failed to connect" in details:
            return Unavailable(f"nothing answers at {self._endpoint}")
        if error.code() is grpc.StatusCode.UNAVAILABLE and "DNS resolution" in details:
            return Unavailable(f"{self._endpoint}: no such host")
        return from_rpc(error)
