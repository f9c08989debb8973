"""POST /v1/embeddings and /v1/rerank."""

from __future__ import annotations

from inferflux.common.errors import InferFluxError
from inferflux.gateway.embeddings import Embeddings
from inferflux.gateway.off_loop import off_loop_if_large
from inferflux.v1 import embedding_pb2

from .bodies import parse
from .endpoint import Request
from .errors import in_words_of
from .openai import embeddings
from .openai.bodies import EmbeddingsBody, RerankBody


class CreateEmbeddings:
    """Vectors of texts, in OpenAI's shape."""

    def __init__(self, work: Embeddings) -> None:
        self._work = work

    async def __call__(self, request: Request) -> None:
        body, asked = await off_loop_if_large(len(request.body), lambda: _read_embeddings(request.body))
        try:
            async with request.exchange.cancelled_when_gone():
                embedded = await self._work.vectors(request.exchange.context, request.caller, asked)
        except InferFluxError as error:
            raise in_words_of(error, embeddings.EMBEDDINGS_NAMES) from None
        await request.exchange.answer_json(embeddings.of_embedded(embedded, body))


class Rerank:
    """Documents by how well they answer a query, in the shape of Jina's API."""

    def __init__(self, work: Embeddings) -> None:
        self._work = work

    async def __call__(self, request: Request) -> None:
        body, asked = await off_loop_if_large(len(request.body), lambda: _read_rerank(request.body))
        try:
            async with request.exchange.cancelled_when_gone():
                answer = await self._work.rerank(request.exchange.context, request.caller, asked)
        except InferFluxError as error:
            raise in_words_of(error, {}) from None
        await request.exchange.answer_json(embeddings.of_rerank(answer, body))


def _read_embeddings(data: bytes) -> tuple[EmbeddingsBody, embedding_pb2.EmbedRequest]:
    body = parse(EmbeddingsBody, data)
    return body, embeddings.to_embed(body)


def _read_rerank(data: bytes) -> tuple[RerankBody, embedding_pb2.RerankRequest]:
    body = parse(RerankBody, data)
    return body, embeddings.to_rerank(body)
