"""POST /v1/embeddings and /v1/rerank."""

from __future__ import annotations

from inferflux.common.contract.errors import InferFluxError
from inferflux.gateway.http.errors.errors import in_words_of
from inferflux.gateway.http.front.endpoint import Request
from inferflux.gateway.http.openai import embeddings
from inferflux.gateway.http.openai.text_bodies import EmbeddingsBody, RerankBody
from inferflux.gateway.request.embeddings import Embeddings
from inferflux.v1 import model_pb2

from .reading import BodyReader


class CreateEmbeddings:
    """Vectors of texts, in OpenAI's shape."""

    def __init__(self, work: Embeddings, bodies: BodyReader) -> None:
        self._work = work
        self._bodies = bodies

    async def __call__(self, request: Request) -> None:
        body, asked = await self._bodies.read(
            request.caller, request.body, EmbeddingsBody, embeddings.to_embed, model_pb2.MODEL_ROLE_EMBEDDING
        )
        try:
            async with request.exchange.cancelled_when_gone():
                embedded = await self._work.vectors(request.exchange.context, request.caller, asked)
        except InferFluxError as error:
            raise in_words_of(error, embeddings.EMBEDDINGS_NAMES) from None
        await request.exchange.answer_json(embeddings.of_embedded(embedded, body))


class Rerank:
    """Documents by how well they answer a query, in the shape of Jina's API, or as TEI has them."""

    def __init__(self, work: Embeddings, bodies: BodyReader) -> None:
        self._work = work
        self._bodies = bodies

    async def __call__(self, request: Request) -> None:
        body, asked = await self._bodies.read(
            request.caller, request.body, RerankBody, embeddings.to_rerank, model_pb2.MODEL_ROLE_RERANK
        )
        try:
            async with request.exchange.cancelled_when_gone():
                answer = await self._work.rerank(request.exchange.context, request.caller, asked)
        except InferFluxError as error:
            raise in_words_of(error, {}) from None
        await request.exchange.answer_json(embeddings.of_rerank(answer, body))
