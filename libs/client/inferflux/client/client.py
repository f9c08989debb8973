"""The client for code that blocks."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar

import grpc

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

from .base_client import BaseClient
from .calling import RequestCalls, metadata
from .ending import LIMIT_S, PAUSE_S, n_cancels
from .following import Following
from .requests import Messages, Text, embed_request, rerank_request, tokenize_request
from .retrying import Retrying, readable
from .stream import Stream

_Q = TypeVar("_Q")
_R = TypeVar("_R")


class Gateway:
    """One gateway, with a channel that connects when it is used."""

    def __init__(
        self, address: str, credentials: grpc.ChannelCredentials | None, options: Sequence[Option]
    ) -> None:
        self.address = address
        self.channel = (
            grpc.insecure_channel(address, options=options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options=options)
        )
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.embedding = embedding_pb2_grpc.EmbeddingServiceStub(self.channel)
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)


class Client(BaseClient[Gateway, Stream]):
    """Calls a company's gateways. Threads may share it. Close it, or use it as a context.

    What is open when the program ends is closed then.

    Every method raises an InferFluxError with a reason for machines. InvalidArgument names its field, others
    say when to try again. A call that a gateway cannot serve goes to the next one.
    """

    def __init__(
        self,
        addresses: str | Sequence[str] = "",
        *,
        api_key: str = "",
        retries: int = 2,
        tls: Tls | None = None,
    ) -> None:
        super().__init__(Gateway, addresses, api_key, retries, tls)
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._endings: list[threading.Thread] = []
        _open_clients.add(self)

    def cancel(self, request_id: str, *, timeout_s: float = 10.0) -> None:
        """End a queued or running request of this key's tenant; NotFound if there is none."""
        request = inference_pb2.CancelRequest(request_id=request_id)
        self._call(lambda to: to.inference.Cancel, request, timeout_s)

    def models(self, *, timeout_s: float = 10.0) -> list[model_pb2.Model]:
        """List the models that are served, or were: a model without workers is not served now."""
        request = model_pb2.ListModelsRequest()
        return list(self._call(lambda to: to.models.ListModels, request, timeout_s).models)

    def tokenize(self, prompt: Messages, *, model: str, timeout_s: float = 10.0) -> list[int]:
        """The token ids of a text, as `generate` takes it, or of messages, as `chat` does."""
        request = tokenize_request(prompt, model=model)
        return list(self._call(lambda to: to.inference.Tokenize, request, timeout_s).token_ids)

    def detokenize(self, token_ids: Iterable[int], *, model: str, timeout_s: float = 10.0) -> str:
        """The text of token ids."""
        request = inference_pb2.DetokenizeRequest(model=model, token_ids=token_ids)
        return self._call(lambda to: to.inference.Detokenize, request, timeout_s).text

    def embed(
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
        response = self._call(lambda to: to.embedding.Embed, request, timeout_s)
        return [list(each.values) for each in response.embeddings]

    def rerank(
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
        return list((self._call(lambda to: to.embedding.Rerank, request, timeout_s)).results)

    def close(self) -> None:
        """Close all streams, which cancels their requests, and the connections. Safe to call twice."""
        for stream in list(self._streams):
            stream.close()
        for thread in list(self._endings):
            thread.join(LIMIT_S)
        for gateway in self._gateways.take_all():
            gateway.channel.close()
        _open_clients.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, calls: RequestCalls[Gateway], following: Following) -> Stream:
        stream = Stream(calls, following, end=self._end, end_later=self._end_later)
        self._streams.add(stream)
        return stream

    def _call(
        self,
        method: Callable[[Gateway], grpc.UnaryUnaryMultiCallable[_Q, _R]],
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
                return method(gateway)(request, metadata=sent_as, timeout=timeout_s)
            except grpc.RpcError as failed:
                error = from_rpc(failed)
            again = retrying.after(error)
            if again is None:
                raise readable(error, gateway.address)
            if again.moves:
                self._gateways.leave(gateway)
            time.sleep(again.delay_s)

    def _end(self, request_id: str, *, is_known: bool) -> bool:
        """Cancel a request; again where it may not have come to the scheduler yet. False if that failed."""
        request = inference_pb2.CancelRequest(request_id=request_id)
        for _ in range(n_cancels(is_known=is_known)):
            try:
                self._call(lambda to: to.inference.Cancel, request, LIMIT_S, retries=0)
            except NotFound:
                time.sleep(PAUSE_S)
            except (InferFluxError, ValueError):  # gRPC: the channel was closed
                return False
            else:
                return True
        return True

    def _end_later(self, request_id: str, *, is_known: bool) -> None:
        """The same, without waiting for it: a stream was garbage-collected."""
        thread = threading.Thread(
            target=self._end, args=(request_id,), kwargs={"is_known": is_known}, daemon=True
        )
        self._endings = [other for other in self._endings if other.is_alive()]
        with contextlib.suppress(RuntimeError):  # the interpreter is ending
            thread.start()
            self._endings.append(thread)


_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close what a program left open, while the threads of gRPC are alive."""
    for client in list(_open_clients):
        client.close()
