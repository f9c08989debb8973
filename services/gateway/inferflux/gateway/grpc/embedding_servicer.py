"""EmbeddingService as gRPC sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferflux.common.calls.grpc_interceptor import caller_as, current_call
from inferflux.common.contract.callers import rate_limits
from inferflux.gateway.policy.caller import Caller
from inferflux.gateway.request.embeddings import Embeddings
from inferflux.v1 import embedding_pb2, embedding_pb2_grpc

if TYPE_CHECKING:
    import grpc

    Context = grpc.aio.ServicerContext[Any, Any]


class EmbeddingServicer(embedding_pb2_grpc.EmbeddingServiceServicer):
    """Errors leave as InferFluxErrors; the server's interceptor gives them their status."""

    def __init__(self, embeddings: Embeddings) -> None:
        self._embeddings = embeddings

    async def Embed(
        self, request: embedding_pb2.EmbedRequest, context: Context
    ) -> embedding_pb2.EmbedResponse:
        caller = caller_as(Caller)
        context.set_trailing_metadata(tuple(rate_limits.headers_of(caller.limits).items()))
        return await self._embeddings.embed(current_call().context, caller, request)

    async def Rerank(
        self, request: embedding_pb2.RerankRequest, context: Context
    ) -> embedding_pb2.RerankResponse:
        caller = caller_as(Caller)
        context.set_trailing_metadata(tuple(rate_limits.headers_of(caller.limits).items()))
        return await self._embeddings.rerank(current_call().context, caller, request)
