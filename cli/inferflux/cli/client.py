"""The gateway's API as the commands use it: errors of ours instead of gRPC's, chunks instead of responses."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self

import grpc
import grpc.aio

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

_Metadata = tuple[tuple[str, str], ...]
_UNARY_LIMIT_S = 10.0


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
        on_resumed: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[tokens_pb2.TokenChunk, None]:
        """The answer to a conversation. Closing the generator early cancels the request.

        Args:
            resume_window_s: with one, a stream whose connection is lost is resumed for so long.
            on_resumed: told each time.
        """
        request = inference_pb2.ChatRequest(
            model=model,
            messages=messages,
            params=params,
            priority=priority,
            resume_window_s=resume_window_s,
        )
        return self._chunks(
            lambda metadata: self._inference.Chat(request, metadata=metadata),
            request_id,
            resume_window_s,
            on_resumed,
        )

    def generate(
        self,
        prompt: str,
        *,
        model: str,
        params: generation_pb2.GenerationParams,
        priority: int = 0,
        request_id: str = "",
        resume_window_s: int = 0,
        on_resumed: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[tokens_pb2.TokenChunk, None]:
        """The continuation of a text; the last two arguments are as in `chat`. Closing the generator early
        cancels the request."""
        request = inference_pb2.GenerateRequest(
            model=model, text=prompt, params=params, priority=priority, resume_window_s=resume_window_s
        )
        return self._chunks(
            lambda metadata: self._inference.Generate(request, metadata=metadata),
            request_id,
            resume_window_s,
            on_resumed,
        )

    async def resume(self, request_id: str, *, offset: int) -> AsyncGenerator[tokens_pb2.TokenChunk, None]:
        """What a request has said and will say from a token on. Closing the generator early only ends this
        reading."""
        try:
            async with aclosing(read(self._resume(request_id, offset))) as chunks:
                async for chunk in chunks:
                    yield chunk
        except grpc.aio.AioRpcError as error:
            raise self._readable(error) from None

    async def cancel(self, request_id: str) -> None:
        """End a queued or running request of this key's tenant."""
        request = inference_pb2.CancelRequest(request_id=request_id)
        try:
            await self._inference.Cancel(request, metadata=self._metadata(), timeout=_UNARY_LIMIT_S)
        except grpc.aio.AioRpcError as error:
            raise self._readable(error) from None

    async def models(self) -> list[model_pb2.Model]:
        """What is served."""
        try:
            reply = await self._models.ListModels(
                model_pb2.ListModelsRequest(), metadata=self._metadata(), timeout=_UNARY_LIMIT_S
            )
        except grpc.aio.AioRpcError as error:
            raise self._readable(error) from None
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
        try:
            return await self._cluster.GetStatus(
                cluster_pb2.GetStatusRequest(), metadata=self._metadata(), timeout=_UNARY_LIMIT_S
            )
        except grpc.aio.AioRpcError as error:
            raise self._readable(error) from None

    async def fairness(self) -> scheduler_pb2.Fairness:
        """What the fairness controller goes by."""
        request = admin_pb2.GetFairnessRequest()
        try:
            reply = await self._admin.GetFairness(request, metadata=self._metadata(), timeout=_UNARY_LIMIT_S)
        except grpc.aio.AioRpcError as error:
            raise self._readable(error) from None
        return reply.fairness

    async def set_fairness(self, change: scheduler_pb2.SetFairness) -> scheduler_pb2.Fairness:
        """Change what the fairness controller goes by; returns all of it."""
        request = admin_pb2.SetFairnessRequest(change=change)
        try:
            reply = await self._admin.SetFairness(request, metadata=self._metadata(), timeout=_UNARY_LIMIT_S)
        except grpc.aio.AioRpcError as error:
            raise self._readable(error) from None
        return reply.fairness

    async def drain(
        self, worker_id: str, *, hand_over_after_ms: int | None = None
    ) -> AsyncGenerator[scheduler_pb2.DrainProgress, None]:
        """Have a worker take nothing new, and follow it. Closing the generator early does not undo it."""
        request = admin_pb2.DrainWorkerRequest(worker_id=worker_id, hand_over_after_ms=hand_over_after_ms)
        call = self._admin.DrainWorker(request, metadata=self._metadata())
        try:
            async for response in call:
                yield response.progress
        except grpc.aio.AioRpcError as error:
            raise self._readable(error) from None
        finally:
            call.cancel()

    async def undrain(self, worker_id: str) -> scheduler_pb2.DrainProgress:
        """Have a worker take requests again."""
        request = admin_pb2.UndrainWorkerRequest(worker_id=worker_id)
        try:
            reply = await self._admin.UndrainWorker(
                request, metadata=self._metadata(), timeout=_UNARY_LIMIT_S
            )
        except grpc.aio.AioRpcError as error:
            raise self._readable(error) from None
        return reply.progress

    async def _chunks(
        self,
        start: Callable[[_Metadata], Call],
        request_id: str,
        resume_window_s: int,
        on_resumed: Callable[[], None],
    ) -> AsyncGenerator[tokens_pb2.TokenChunk, None]:
        # To be resumed, a request has an id that is known here.
        request_id = request_id or (uuid.uuid4().hex if resume_window_s else "")
        metadata = self._metadata(request_id)
        chunks = (
            read_resuming(
                lambda: start(metadata),
                lambda offset: self._resume(request_id, offset),
                lambda: self.cancel(request_id),
                window_s=resume_window_s,
                on_resumed=on_resumed,
            )
            if resume_window_s
            else read(start(metadata))
        )
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
        except grpc.aio.AioRpcError as error:
            raise self._readable(error) from None

    def _resume(self, request_id: str, offset: int) -> Call:
        request = inference_pb2.ResumeRequest(request_id=request_id, offset=offset)
        call: Call = self._inference.Resume(request, metadata=self._metadata())
        return call

    def _metadata(self, request_id: str = "") -> tuple[tuple[str, str], ...]:
        return grpc_client.outgoing(api_key=self._api_key, request_id=request_id)

    def _readable(self, error: grpc.aio.AioRpcError) -> InferFluxError:
        """gRPC's own words for "nobody there" are long and about sockets."""
        details = error.details() or ""
        if error.code() is grpc.StatusCode.UNAVAILABLE and "failed to connect" in details:
            return Unavailable(f"nothing answers at {self._endpoint}")
        if error.code() is grpc.StatusCode.UNAVAILABLE and "DNS resolution" in details:
            return Unavailable(f"{self._endpoint}: no such host")
        return from_rpc(error)
