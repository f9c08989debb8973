"""The gateway's API as the commands use it: errors of ours instead of gRPC's, chunks instead of responses."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc.aio
from google.protobuf.message import Message

from inferflux.api.channel_options import with_proxy
from inferflux.client import AsyncClient, AsyncStream
from inferflux.client.gateways import Gateways
from inferflux.client.retrying import GATEWAY_LOST, never_connected, readable, was_lost
from inferflux.client.target import may_be_several, resolve
from inferflux.common.calls import grpc_client
from inferflux.common.contract.errors import InferFluxError, PermissionDenied, Unavailable, from_rpc
from inferflux.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    cluster_pb2,
    cluster_pb2_grpc,
    embedding_pb2,
    embedding_pb2_grpc,
    generation_pb2,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    policy_pb2_grpc,
    scheduler_pb2,
    tokens_pb2,
)

from .errors import CommandError
from .statuses import joined_status, merged_status
from .target import Target

_Reply = TypeVar("_Reply")
OnDelta = Callable[[inference_pb2.ChatDelta], None]
_UNARY_LIMIT_S = 10.0
# A request that moves is waited for.
_MOVE_LIMIT_S = 20.0
# How long a stream is resumed where another gateway may take it up.
_RESUME_WINDOW_S = 30
_CAN_RESUME = (
    "the request may go on: `inferctl resume {}` prints its answer. With --resume-window 30 a stream goes on "
    "by itself, at a gateway that is back, or at another one that is named"
)
# A file is read and tried before it is loaded.
_LOAD_LIMIT_S = 90.0
# Of many texts, the last ones wait for the others.
_EMBED_LIMIT_S = 600.0
# Items of a list that are asked for at a time.
_PAGE = 500


class _Gateway:
    """One gateway, with a channel that connects when it is used."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        self.channel = grpc_client.channel(
            address, options=with_proxy((), os.environ), credentials=credentials
        )
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.embedding = embedding_pb2_grpc.EmbeddingServiceStub(self.channel)
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)
        self.cluster = cluster_pb2_grpc.ClusterServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        self.policy = policy_pb2_grpc.PolicyServiceStub(self.channel)


class Client:
    """Calls a gateway, or several: the next one where one does not answer. Use as an async context manager.

    Every method raises InferFluxError, with a message for people, for whatever the call ended with.
    """

    def __init__(self, target: Target) -> None:
        self._api_key = target.api_key
        self._streams = AsyncClient(target.endpoint, api_key=target.api_key, retries=0, tls=target.tls)
        addresses = resolve(target.endpoint, target.api_key, {}).addresses
        self._has_several = may_be_several(addresses)
        credentials = target.tls.credentials()
        self._gateways = Gateways(addresses, lambda address: _Gateway(address, credentials))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._streams.close()
        for gateway in self._gateways.take_all():
            await gateway.channel.close()

    def chat(
        self,
        messages: Sequence[inference_pb2.ChatMessage],
        *,
        model: str,
        params: generation_pb2.GenerationParams,
        priority: int = 0,
        request_id: str = "",
        resume_window_s: int | None = None,
        skip_answer_cache: bool = False,
        tools: Sequence[inference_pb2.Tool] = (),
        on_delta: OnDelta = lambda _delta: None,
        on_resumed: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[tokens_pb2.TokenChunk, None]:
        """The answer to a conversation. Closing the generator early cancels the request.

        Args:
            on_delta: with tools, told before each chunk what its text is.
            resume_window_s: how long a stream whose connection is lost is resumed; 0: not at all. None: 30
                where another gateway may take it up, else 0.
            on_resumed: told each time.
        """
        stream = self._streams.chat(
            messages,
            model=model,
            params=params,
            priority=priority,
            request_id=request_id,
            resume_window_s=self._window_s(resume_window_s),
            skip_answer_cache=skip_answer_cache,
            tools=tools,
        )
        return self._chunks(stream, on_resumed, on_delta, is_own=True)

    def generate(
        self,
        prompt: str,
        *,
        model: str,
        params: generation_pb2.GenerationParams,
        priority: int = 0,
        request_id: str = "",
        resume_window_s: int | None = None,
        skip_answer_cache: bool = False,
        on_resumed: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[tokens_pb2.TokenChunk, None]:
        """The continuation of a text; the last two arguments are as in `chat`. Closing the generator early
        cancels the request."""
        stream = self._streams.generate(
            prompt,
            model=model,
            params=params,
            priority=priority,
            request_id=request_id,
            resume_window_s=self._window_s(resume_window_s),
            skip_answer_cache=skip_answer_cache,
        )
        return self._chunks(stream, on_resumed, is_own=True)

    def resume(
        self, request_id: str, *, offset: int, on_delta: OnDelta = lambda _delta: None
    ) -> AsyncGenerator[tokens_pb2.TokenChunk, None]:
        """Stream a request's tokens from `offset` on, past and future; `on_delta` is as in `chat`.

        Closing the generator early only ends this reading.
        """
        return self._chunks(self._streams.resume(request_id, offset=offset), on_delta=on_delta)

    async def cancel(self, request_id: str) -> None:
        """End a queued or running request of this key's tenant."""
        await self._call(lambda to: to.inference.Cancel, inference_pb2.CancelRequest(request_id=request_id))

    async def embed(self, request: embedding_pb2.EmbedRequest) -> embedding_pb2.EmbedResponse:
        """Vectors of texts."""
        return await self._call(lambda to: to.embedding.Embed, request, timeout_s=_EMBED_LIMIT_S)

    async def rerank(self, request: embedding_pb2.RerankRequest) -> embedding_pb2.RerankResponse:
        """Documents by how well they answer a query."""
        return await self._call(lambda to: to.embedding.Rerank, request, timeout_s=_EMBED_LIMIT_S)

    async def models(self) -> list[model_pb2.Model]:
        """List the models."""
        reply = await self._call(lambda to: to.models.ListModels, model_pb2.ListModelsRequest())
        return list(reply.models)

    async def model(self, name: str) -> model_pb2.Model:
        """A known model, served or not."""
        reply = await self._call(lambda to: to.models.GetModel, model_pb2.GetModelRequest(name=name))
        return reply.model

    async def load_model(self, request: model_pb2.LoadModelRequest) -> model_pb2.Model:
        """Have a model loaded; returns it as it is when that has begun."""
        reply = await self._call(lambda to: to.models.LoadModel, request, timeout_s=_LOAD_LIMIT_S)
        return reply.model

    async def unload_model(self, request: model_pb2.UnloadModelRequest) -> model_pb2.Model:
        """Have a model unloaded; returns it as it is when that has begun."""
        reply = await self._call(lambda to: to.models.UnloadModel, request)
        return reply.model

    async def add_adapter(self, request: model_pb2.AddAdapterRequest) -> model_pb2.Model:
        """Have a file become an adapter of a model; returns the model with it."""
        reply = await self._call(lambda to: to.models.AddAdapter, request, timeout_s=_LOAD_LIMIT_S)
        return reply.model

    async def remove_adapter(self, request: model_pb2.RemoveAdapterRequest) -> model_pb2.Model:
        """Have requests not choose an adapter any more; returns the model without it."""
        reply = await self._call(lambda to: to.models.RemoveAdapter, request)
        return reply.model

    def pull(self, request: model_pb2.PullRequest) -> AsyncGenerator[model_pb2.StoreJob, None]:
        """Have a model pulled, and follow it. Closing the generator early does not end the pull."""
        return self._follow(lambda to: to.models.Pull, request, "job")

    def verify_model(self, request: model_pb2.VerifyModelRequest) -> AsyncGenerator[model_pb2.StoreJob, None]:
        """Have models of a store read again, and follow it."""
        return self._follow(lambda to: to.models.VerifyModel, request, "job")

    async def remove_model(self, request: model_pb2.RemoveModelRequest) -> model_pb2.StoreJob:
        """Delete a model of a store."""
        reply = await self._call(lambda to: to.models.RemoveModel, request, timeout_s=_LOAD_LIMIT_S)
        return reply.job

    async def only_model(self) -> str:
        """The name of the default model, else of one that is served, else of one that can be loaded.

        "" where this key may not list models: the gateway takes its default model then.

        Raises:
            CommandError: none is served.
        """
        try:
            known = await self.models()
        except PermissionDenied:
            return ""
        if not known:
            raise CommandError(f"{self._gateways.current.address} serves no model at present")
        return max(known, key=lambda model: (model.is_default, model.is_pinned, model.workers > 0)).card.name

    async def status(self, page_size: int = _PAGE, page_token: str = "") -> cluster_pb2.GetStatusResponse:
        """Services, slots, queue, and a page of workers and hosts, as a gateway knows them; of all gateways,
        how each is."""
        asked = cluster_pb2.GetStatusRequest(page_size=page_size, page_token=page_token)
        every = self._gateways.every()
        if len(every) == 1:
            return await self._call(lambda to: to.cluster.GetStatus, asked)
        answers = await asyncio.gather(*(self._status_of(gateway, asked) for gateway in every))
        known = [answer for answer in answers if isinstance(answer, cluster_pb2.GetStatusResponse)]
        if not known:
            raise next(answer for answer in answers if isinstance(answer, InferFluxError))
        return merged_status(answers)

    async def whole_status(self) -> cluster_pb2.GetStatusResponse:
        """The status with all workers and hosts."""
        pages = [await self.status()]
        while token := pages[-1].next_page_token:
            pages.append(await self.status(page_token=token))
        return joined_status(pages)

    async def _status_of(
        self, gateway: _Gateway, asked: cluster_pb2.GetStatusRequest
    ) -> cluster_pb2.GetStatusResponse | InferFluxError:
        try:
            return await gateway.cluster.GetStatus(asked, metadata=self._metadata(), timeout=_UNARY_LIMIT_S)
        except grpc.aio.AioRpcError as error:
            return readable(from_rpc(error), gateway.address)

    async def fairness(self) -> scheduler_pb2.Fairness:
        """The settings of the fairness controller."""
        reply = await self._call(lambda to: to.admin.GetFairness, admin_pb2.GetFairnessRequest())
        return reply.fairness

    async def set_fairness(self, change: scheduler_pb2.SetFairness) -> scheduler_pb2.Fairness:
        """Change settings of the fairness controller; returns all of them."""
        reply = await self._call(lambda to: to.admin.SetFairness, admin_pb2.SetFairnessRequest(change=change))
        return reply.fairness

    def drain(
        self, worker_id: str, *, hand_over_after_ms: int | None = None
    ) -> AsyncGenerator[scheduler_pb2.DrainProgress, None]:
        """Have a worker take nothing new, and follow it. Closing the generator early does not undo it."""
        request = admin_pb2.DrainWorkerRequest(worker_id=worker_id, hand_over_after_ms=hand_over_after_ms)
        return self._follow(lambda to: to.admin.DrainWorker, request, "progress")

    async def undrain(self, worker_id: str) -> scheduler_pb2.DrainProgress:
        """Have a worker take requests again."""
        request = admin_pb2.UndrainWorkerRequest(worker_id=worker_id)
        reply = await self._call(lambda to: to.admin.UndrainWorker, request)
        return reply.progress

    async def move(self, tenant: str, request_id: str, worker_id: str) -> scheduler_pb2.MovedRequest:
        """Have another worker go on with a request; returns once it does.

        Args:
            tenant: empty: the one that has such a request.
        """
        request = admin_pb2.MoveRequestRequest(tenant=tenant, request_id=request_id, worker_id=worker_id)
        reply = await self._call(lambda to: to.admin.MoveRequest, request, timeout_s=_MOVE_LIMIT_S)
        return reply.moved

    async def clear_cache(self, request: admin_pb2.ClearCacheRequest) -> admin_pb2.ClearCacheResponse:
        """Clear caches of workers, and the answer cache; says of each what was cleared, or why not."""
        return await self._call(lambda to: to.admin.ClearCache, request)

    async def policy(self, method: str, request: Message, *, timeout_s: float = _UNARY_LIMIT_S) -> Any:
        """Call a method of PolicyService, which the gateway passes on; returns its response."""
        return await self._call(lambda to: getattr(to.policy, method), request, timeout_s=timeout_s)

    async def whole_list(self, method: str, request: Any) -> Any:
        """All pages of a list of PolicyService as one response.

        Args:
            request: of the first page; its page_size and page_token are set here.
        """
        whole = None
        while whole is None or request.page_token:
            request.page_size = _PAGE
            page = await self.policy(method, request)
            request.page_token = page.next_page_token
            page.next_page_token = ""
            whole = whole or type(page)()
            whole.MergeFrom(page)
        return whole

    async def _call(
        self,
        method: Callable[[_Gateway], Callable[..., Awaitable[_Reply]]],
        request: Message,
        *,
        timeout_s: float = _UNARY_LIMIT_S,
    ) -> _Reply:
        """Ask the gateway of the moment, or the next one where nothing answers: what arrived is not sent
        again."""
        for is_last in self._tries():
            gateway = self._gateways.current
            try:
                return await method(gateway)(request, metadata=self._metadata(), timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                self._leave(gateway, error, is_last=is_last)
        raise AssertionError("the last try raises")

    async def _follow(
        self, method: Callable[[_Gateway], Callable[..., Any]], request: Message, field: str
    ) -> AsyncGenerator[Any, None]:
        """A field of each response of a call that streams them, of the gateway that answers. Where its
        connection is lost, of the next one: the call only follows what goes on without it.
        """
        for is_last in self._tries():
            gateway = self._gateways.current
            call = method(gateway)(request, metadata=self._metadata())
            try:
                async for response in call:
                    yield getattr(response, field)
                return
            except grpc.aio.AioRpcError as error:
                self._leave(gateway, error, is_last=is_last, may_repeat=True)
            finally:
                call.cancel()

    def _tries(self) -> Iterator[bool]:
        """One for each gateway; whether it is the last."""
        count = len(self._gateways)
        return (number == count for number in range(1, count + 1))

    def _leave(
        self, gateway: _Gateway, error: grpc.aio.AioRpcError, *, is_last: bool, may_repeat: bool = False
    ) -> None:
        """Have the next gateway called.

        Args:
            may_repeat: whether it may be asked what arrived at this one.

        Raises:
            InferFluxError: it may not be asked the same.
        """
        own = from_rpc(error)
        if isinstance(own, Unavailable):
            self._gateways.leave(gateway)
        if is_last or not (never_connected(own) or (may_repeat and was_lost(own))):
            raise readable(own, gateway.address) from None

    async def _chunks(
        self,
        stream: AsyncStream,
        on_resumed: Callable[[], None] = lambda: None,
        on_delta: OnDelta = lambda _delta: None,
        *,
        is_own: bool = False,
    ) -> AsyncGenerator[tokens_pb2.TokenChunk, None]:
        resumes = 0
        async with stream:
            try:
                async for chunk in stream:
                    if stream.resumes > resumes:
                        resumes = stream.resumes
                        on_resumed()
                    if stream.delta is not None:
                        on_delta(stream.delta)
                    yield chunk
            except InferFluxError as error:
                if error.reason == GATEWAY_LOST and is_own:
                    error.add_note(_CAN_RESUME.format(stream.request_id))
                raise

    def _window_s(self, given: int | None) -> int:
        if given is None:
            return _RESUME_WINDOW_S if self._has_several else 0
        return given

    def _metadata(self, request_id: str = "") -> tuple[tuple[str, str], ...]:
        return grpc_client.outgoing(api_key=self._api_key, request_id=request_id)
