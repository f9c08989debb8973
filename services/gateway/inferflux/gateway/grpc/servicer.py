"""InferenceService and EmbeddingService as gRPC sees them: a front that only translates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from inferflux.common.calls import grpc_metadata
from inferflux.common.calls.grpc_interceptor import caller_as, current_call
from inferflux.common.contract.callers import rate_limits
from inferflux.gateway.policy.caller import Caller
from inferflux.gateway.request.constraints import UNENFORCED_HEADER
from inferflux.gateway.request.embeddings import Embeddings
from inferflux.gateway.request.generation import Generation
from inferflux.gateway.request.pipeline import Pipeline
from inferflux.v1 import embedding_pb2, embedding_pb2_grpc, inference_pb2, inference_pb2_grpc

if TYPE_CHECKING:
    import grpc

    Context = grpc.aio.ServicerContext[Any, Any]


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Errors leave as InferFluxErrors; the server's interceptor gives them their status."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._tokens = pipeline.tokens

    async def Chat(
        self, request: inference_pb2.ChatRequest, context: Context
    ) -> AsyncIterator[inference_pb2.ChatResponse]:
        async with self._pipeline.chat(current_call().context, caller_as(Caller), request) as generation:
            _tell(context, generation, asked_priority=request.priority)
            async for chunk in generation:
                yield inference_pb2.ChatResponse(chunk=chunk, delta=generation.read(chunk))

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        async with self._pipeline.generate(current_call().context, caller_as(Caller), request) as generation:
            _tell(context, generation, asked_priority=request.priority)
            async for chunk in generation:
                yield inference_pb2.GenerateResponse(chunk=chunk)

    async def Resume(
        self, request: inference_pb2.ResumeRequest, context: Context
    ) -> AsyncIterator[inference_pb2.ResumeResponse]:
        async with self._pipeline.resume(current_call().context, caller_as(Caller), request) as generation:
            async for chunk in generation:
                yield inference_pb2.ResumeResponse(chunk=chunk, delta=generation.read(chunk))

    async def Cancel(
        self, request: inference_pb2.CancelRequest, context: Context
    ) -> inference_pb2.CancelResponse:
        await self._pipeline.cancel(caller_as(Caller), request.request_id)
        return inference_pb2.CancelResponse()

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: Context
    ) -> inference_pb2.TokenizeResponse:
        caller = caller_as(Caller)
        context.set_trailing_metadata(tuple(rate_limits.headers_of(caller.limits).items()))
        return await self._tokens.tokenize(caller, request)

    async def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: Context
    ) -> inference_pb2.DetokenizeResponse:
        caller = caller_as(Caller)
        context.set_trailing_metadata(tuple(rate_limits.headers_of(caller.limits).items()))
        return await self._tokens.detokenize(caller, request)


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


def _tell(context: Context, generation: Generation, *, asked_priority: int) -> None:
    """Set the trailing metadata: what is left of the limits, and a priority that was lowered."""
    said = dict(rate_limits.headers_of(generation.limits))
    prepared = generation.prepared
    if prepared.job.priority != asked_priority:
        said[grpc_metadata.PRIORITY] = str(prepared.job.priority)
    if prepared.unenforced:
        said[UNENFORCED_HEADER] = prepared.unenforced
    context.set_trailing_metadata(tuple(said.items()))
