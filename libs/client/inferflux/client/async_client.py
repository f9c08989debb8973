"""The client for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar

import grpc.aio

from inferflux.api.channel_options import Option
from inferflux.api.errors import InferFluxError, NotFound, from_rpc
from inferflux.api.tls import Tls
from inferflux.v1 import (
    embedding_pb2,
    embedding_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)

from .async_stream import AsyncStream
from .base_client import BaseClient
from .calling import RequestCalls, metadata
from .ending import LIMIT_S, PAUSE_S, n_cancels
from .following import Following
from .requests import Messages, Text, embed_request, rerank_request, tokenize_request
from .retrying import Retrying, readable

_Q = TypeVar("_Q")
_R = TypeVar("_R")


class AsyncGateway:
    """One gateway, with a channel that connects when it is used."""

    def __init__(
        self, address: str, credentials: grpc.ChannelCredentials | None, options: Sequence[Option]
    ) -> None:
        self.address = address
        self.channel = (
            grpc.aio.insecure_channel(address, options=options)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, options=options)
        )
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.embedding = embedding_pb2_grpc.EmbeddingServiceStub(self.channel)
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)


class AsyncClient(BaseClient[AsyncGateway, AsyncStream]):
    """`Client` for asyncio. It belongs to the event loop that runs when it is first used.

    What is open when that loop ends, as `asyncio.run` does, is closed then.
    """

    def __init__(
        self,
        addresses: str | Sequence[str] = "",
        *,
        api_key: str = "",
        retries: int = 2,
        tls: Tls | None = None,
    ) -> None:
        super().__init__(AsyncGateway, addresses, api_key, retries, tls)
        self._streams: weakref.WeakSet[AsyncStream] = weakref.WeakSet()
        self._endings: set[asyncio.Task[bool]] = set()
        self._until_loop_ends: AsyncGenerator[None] | None = None

    async def cancel(self, request_id: str, *, timeout_s: float = 10.0) -> None:
        """End a queued or running request of this key's tenant; NotFound if there is none."""
        request = inference_pb2.CancelRequest(request_id=request_id)
        await self._call(lambda to: to.inference.Cancel, request, timeout_s)

    async def models(self, *, timeout_s: float = 10.0) -> list[model_pb2.Model]:
        """List the models that are served, or were: a model without workers is not served now."""
        request = model_pb2.ListModelsRequest()
        return list((await self._call(lambda to: to.models.ListModels, request, timeout_s)).models)

    async def tokenize(self, prompt: Messages, *, model: str, timeout_s: float = 10.0) -> list[int]:
        """The token ids of a text, as `generate` takes it, or of messages, as `chat` does."""
        request = tokenize_request(prompt, model=model)
        return list((await self._call(lambda to: to.inference.Tokenize, request, timeout_s)).token_ids)

    async def detokenize(self, token_ids: Iterable[int], *, model: str, timeout_s: float = 10.0) -> str:
        """The text of token ids."""
        request = inference_pb2.DetokenizeRequest(model=model, token_ids=token_ids)
        return (await self._call(lambda to: to.inference.Detokenize, request, timeout_s)).text

    async def embed(
        self,
        inputs: Text | Iterable[Text],
        *,
        model: str,
        dimensions: int | None = None,
        truncate: bool = False,
        priority: int = 0,
        timeout_s: float = 60.0,
    ) -> list[list[float]]:
        """A vector of length 1 of each text, in their order. A text may be given as its token ids.

        Args:
            dimensions: the first numbers of each vector alone.
            truncate: cut what is longer than the model takes, instead of refusing it.
        """
        request = embed_request(
            inputs, model=model, dimensions=dimensions, truncate=truncate, priority=priority
        )
        response = await self._call(lambda to: to.embedding.Embed, request, timeout_s)
        return [list(each.values) for each in response.embeddings]

    async def rerank(
        self,
        query: str,
        documents: Iterable[str],
        *,
        model: str,
        top_n: int | None = None,
        truncate: bool = False,
        priority: int = 0,
        timeout_s: float = 60.0,
    ) -> list[embedding_pb2.RerankResult]:
        """Indices of documents and their scores, that which answers the query best first."""
        request = rerank_request(
            query, documents, model=model, top_n=top_n, truncate=truncate, priority=priority
        )
        return list((await self._call(lambda to: to.embedding.Rerank, request, timeout_s)).results)

    async def close(self) -> None:
        """Close all streams, which cancels their requests, and the connections. Safe to call twice."""
        await asyncio.sleep(0)  # streams that were garbage-collected end first
        for stream in list(self._streams):
            await stream.close()
        if self._endings:
            await asyncio.wait(list(self._endings), timeout=LIMIT_S)
        for gateway in self._gateways.take_all():
            await gateway.channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _open(self, calls: RequestCalls[AsyncGateway], following: Following) -> AsyncStream:
        if self._until_loop_ends is None:
            self._until_loop_ends = _closing(weakref.ref(self))
            with contextlib.suppress(StopIteration):  # it yields at once; from then on the loop has it
                self._until_loop_ends.asend(None).send(None)
        stream = AsyncStream(calls, following, end=self._end, end_later=self._end_later)
        self._streams.add(stream)
        return stream

    async def _call(
        self,
        method: Callable[[AsyncGateway], grpc.aio.UnaryUnaryMultiCallable[_Q, _R]],
        request: _Q,
        timeout_s: float,
        *,
        retries: int | None = None,
    ) -> _R:
        retrying = Retrying(self._retries if retries is None else retries, len(self._gateways))
        sent_as = metadata(self._api_key, priority=getattr(request, "priority", 0))
        while True:
            gateway = self._gateways.current
            try:
                return await method(gateway)(request, metadata=sent_as, timeout=timeout_s)
            except grpc.aio.AioRpcError as failed:
                error = from_rpc(failed)
            again = retrying.after(error)
            if again is None:
                raise readable(error, gateway.address)
            if again.moves:
                self._gateways.leave(gateway)
            await asyncio.sleep(again.delay_s)

    async def _end(self, request_id: str, *, is_known: bool) -> bool:
        """Cancel a request; again where it may not have come to the scheduler yet. False if that failed."""
        request = inference_pb2.CancelRequest(request_id=request_id)
        for _ in range(n_cancels(is_known=is_known)):
            try:
                await self._call(lambda to: to.inference.Cancel, request, LIMIT_S, retries=0)
            except NotFound:
                await asyncio.sleep(PAUSE_S)
            except (InferFluxError, ValueError):  # gRPC: the channel was closed
                return False
            else:
                return True
        return True

    def _end_later(self, request_id: str, *, is_known: bool) -> None:
        """The same, without waiting for it: a stream was garbage-collected."""

        def settle(task: asyncio.Task[bool]) -> None:
            self._endings.discard(task)
            # A loop that ends cancels all tasks, and then waits for `close`.
            if task.cancelled():
                start()

        def start() -> asyncio.Task[bool]:
            task = asyncio.get_running_loop().create_task(self._end(request_id, is_known=is_known))
            self._endings.add(task)
            return task

        start().add_done_callback(settle)


async def _closing(client: weakref.ref[AsyncClient]) -> AsyncGenerator[None]:
    """Closes the client when its loop ends: then the loop closes the generators that are open."""
    try:
        yield
    finally:
        if (open_client := client()) is not None:
            await open_client.close()
