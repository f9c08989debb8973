"""Vectors of texts, and documents by how well they answer a query: a call becomes jobs, these one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from inferflux.common.calls.calls import CallContext
from inferflux.common.contract.errors import Cancelled, Internal, InvalidArgument
from inferflux.common.contract.models.model_roles import check_role
from inferflux.common.contract.requests import generation_limits
from inferflux.common.contract.requests.embedding_limits import MAX_INPUTS, split
from inferflux.common.contract.requests.vectors import Vector, shortened, unpacked
from inferflux.common.process.tasks import cancel_all
from inferflux.gateway.policy.caller import Caller
from inferflux.v1 import embedding_pb2, generation_pb2, model_pb2

from . import validation
from .generation import Generation
from .pipeline import Pipeline
from .preparation import Texts

# Jobs of one call that are queued or run at the same time. Those of other calls get in between.
_JOBS_AT_ONCE = 8
# Of a request id.
_MAX_ID = 64


class TokenizesTexts(Protocol):
    """Tokenizes texts to embed; `inferflux.gateway.tokenizer.tokenizers.Tokenizers` does."""

    async def tokenize_texts(
        self,
        digest: str,
        texts: Sequence[str],
        context_length: int,
        *,
        field: str,
        query: str | None = None,
        truncate: bool = False,
    ) -> list[Sequence[int]]: ...


@dataclass(frozen=True, slots=True)
class Embedded:
    """Attributes:
    vectors: of each text, in their order.
    """

    model: str
    vectors: list[Vector]
    usage: generation_pb2.Usage


class Embeddings:
    """Every method raises InferFluxErrors.

    Args:
        max_text_bytes: of all texts of a call together.
    """

    def __init__(self, pipeline: Pipeline, tokenizers: TokenizesTexts, *, max_text_bytes: int) -> None:
        self._pipeline = pipeline
        self._tokenizers = tokenizers
        self._max_text_bytes = max_text_bytes

    async def embed(
        self, context: CallContext, caller: Caller, request: embedding_pb2.EmbedRequest
    ) -> embedding_pb2.EmbedResponse:
        """As `vectors`; returns the response of the RPC."""
        embedded = await self.vectors(context, caller, request)
        response = embedding_pb2.EmbedResponse(model=embedded.model, usage=embedded.usage)
        for vector in embedded.vectors:
            response.embeddings.add(values=vector.tolist())
        return response

    async def vectors(
        self, context: CallContext, caller: Caller, request: embedding_pb2.EmbedRequest
    ) -> Embedded:
        """One vector for each text, of Euclidean length 1.

        Raises:
            InvalidArgument: a text is empty, too long for the model or cannot be tokenized; names it.
            InferFluxError: as a generation. Where one job fails, the call does, and its others are cancelled.
        """
        validation.check_priority(request.priority, announced=context.announced_priority)
        _check_count(len(request.inputs), "inputs")
        card = await self._pipeline.routing.without_adapter(caller, request.model)
        check_role(card, model_pb2.MODEL_ROLE_EMBEDDING)
        self._check_dimensions(request, card)
        token_ids = await self._token_ids(request, card)
        texts = [each.text if each.HasField("text") else None for each in request.inputs]
        run = _Run(self._pipeline, "Embed", context, caller, card, request.priority, "inputs")
        vectors, usage = await run.vectors(token_ids, texts)
        if request.HasField("dimensions"):
            vectors = [shortened(vector, request.dimensions) for vector in vectors]
        return Embedded(card.name, vectors, usage)

    async def rerank(
        self, context: CallContext, caller: Caller, request: embedding_pb2.RerankRequest
    ) -> embedding_pb2.RerankResponse:
        """Documents by their scores, the best first; raises as `vectors`."""
        validation.check_priority(request.priority, announced=context.announced_priority)
        _check_count(len(request.documents), "documents")
        if request.HasField("top_n") and request.top_n < 1:
            raise InvalidArgument("top_n must be at least 1", field="top_n")
        validation.check_text(request.query, max_text_bytes=self._max_text_bytes, field="query")
        self._check_texts(request.documents, "documents", before=len(request.query.encode()))
        card = await self._pipeline.routing.without_adapter(caller, request.model)
        check_role(card, model_pb2.MODEL_ROLE_RERANK)
        token_ids = await self._tokenizers.tokenize_texts(
            card.digest,
            request.documents,
            card.context_length,
            field="documents",
            query=request.query,
            truncate=request.truncate,
        )
        _check_lengths(token_ids, card, "documents")
        run = _Run(self._pipeline, "Rerank", context, caller, card, request.priority, "documents")
        pairs = [f"{request.query}\n{document}" for document in request.documents]
        vectors, usage = await run.vectors(token_ids, pairs)
        scores = [float(vector[0]) for vector in vectors]
        best = sorted(range(len(scores)), key=lambda i: -scores[i])
        if request.HasField("top_n"):
            best = best[: request.top_n]
        response = embedding_pb2.RerankResponse(model=card.name, usage=usage)
        for i in best:
            response.results.add(index=i, score=scores[i])
        return response

    @staticmethod
    def _check_dimensions(request: embedding_pb2.EmbedRequest, card: model_pb2.ModelCard) -> None:
        if not request.HasField("dimensions"):
            return
        most = card.embedding_length
        if not 1 <= request.dimensions <= (most or request.dimensions):
            message = f"the model's vectors have {most} dimensions; {request.dimensions} are asked for"
            raise InvalidArgument(message, field="dimensions")

    async def _token_ids(
        self, request: embedding_pb2.EmbedRequest, card: model_pb2.ModelCard
    ) -> list[Sequence[int]]:
        """Of each input: those that are text are tokenized together."""
        found: dict[int, Sequence[int]] = {}
        texts: dict[int, str] = {}
        for i, each in enumerate(request.inputs):
            if each.HasField("text"):
                texts[i] = each.text
                continue
            ids = each.token_ids.ids
            field = f"inputs[{i}]"
            if not ids:
                raise InvalidArgument(f"{field} is empty", field=field)
            generation_limits.check_token_ids(ids, card.vocabulary_size, field=field)
            found[i] = ids[: card.context_length] if request.truncate else ids
        self._check_texts(texts.values(), "inputs", names=[f"inputs[{i}]" for i in texts])
        if texts:
            tokenized = await self._tokenizers.tokenize_texts(
                card.digest,
                list(texts.values()),
                card.context_length,
                field="inputs",
                truncate=request.truncate,
            )
            found |= zip(texts, tokenized, strict=True)
        in_order = [found[i] for i in range(len(request.inputs))]
        _check_lengths(in_order, card, "inputs")
        return in_order

    def _check_texts(
        self, texts: Iterable[str], field: str, *, before: int = 0, names: Sequence[str] = ()
    ) -> None:
        """Raises InvalidArgument if one is empty, or all with `before` bytes are too large."""
        size = before
        for i, text in enumerate(texts):
            name = names[i] if names else f"{field}[{i}]"
            if not text:
                raise InvalidArgument(f"{name} is empty", field=name)
            size += len(text.encode())
        validation.check_text_size(size, self._max_text_bytes, field)


@dataclass(frozen=True, slots=True)
class _Run:
    """The jobs of one call.

    Attributes:
        field: that errors name.
    """

    pipeline: Pipeline
    method: str
    context: CallContext
    caller: Caller
    card: model_pb2.ModelCard
    priority: int
    field: str

    async def vectors(
        self, token_ids: Sequence[Sequence[int]], texts: Sequence[str | None]
    ) -> tuple[list[Vector], generation_pb2.Usage]:
        """Of all texts, and what they used together."""
        parts = list(split([len(ids) for ids in token_ids]))
        contexts = _contexts(self.context, len(parts))
        places = asyncio.Semaphore(_JOBS_AT_ONCE)

        async def one(part: range, context: CallContext) -> tuple[list[Vector], generation_pb2.Usage]:
            known = [text for i in part if (text := texts[i]) is not None]
            own = Texts(
                [token_ids[i] for i in part],
                self.field,
                "\n".join(known) if len(known) == len(part) else None,
            )
            async with (
                places,
                self.pipeline.texts(
                    self.method, context, self.caller, self.card, own, priority=self.priority
                ) as generation,
            ):
                return await _vectors_of(generation, len(part))

        if len(parts) == 1:
            return await one(parts[0], contexts[0])
        tasks = [asyncio.create_task(one(*job)) for job in zip(parts, contexts, strict=True)]
        try:
            answers = await asyncio.gather(*tasks)
        finally:
            await cancel_all(tasks)
        usage = generation_pb2.Usage(prompt_tokens=sum(own.prompt_tokens for _, own in answers))
        return [vector for vectors, _ in answers for vector in vectors], usage


async def _vectors_of(generation: Generation, count: int) -> tuple[list[Vector], generation_pb2.Usage]:
    """What a job's last chunk says.

    Raises:
        Cancelled: another call has cancelled it.
        Internal: it has not the vectors that it should have.
    """
    async for chunk in generation:
        if not chunk.HasField("finished"):
            continue
        if chunk.finished.reason == generation_pb2.FINISH_REASON_CANCELLED:
            raise Cancelled("the request was cancelled")
        try:
            return unpacked(chunk.vectors, count=count), chunk.finished.usage
        except InvalidArgument as error:
            raise Internal(
                f"the worker's answer is of no use: {error.message}", reason="BAD_VECTORS"
            ) from None
    raise Internal("the job ended without vectors", reason="BAD_VECTORS")


def _contexts(context: CallContext, jobs: int) -> list[CallContext]:
    """Of each job of a call: their request ids differ by a number.

    Raises:
        InvalidArgument: the client's request id leaves no room for it.
    """
    ids = [context.request_id, *(f"{context.request_id}-{i}" for i in range(1, jobs))]
    if len(ids[-1]) > _MAX_ID:
        message = (
            f"a call of {jobs} jobs needs a request id of at most {_MAX_ID - len(str(jobs)) - 1} characters"
        )
        raise InvalidArgument(message, field="request_id")
    return [replace(context, request_id=own) for own in ids]


def _check_count(count: int, field: str) -> None:
    if not count:
        raise InvalidArgument(f"{field} is empty", field=field)
    if count > MAX_INPUTS:
        raise InvalidArgument(f"{count} {field}; at most {MAX_INPUTS} are taken", field=field)


def _check_lengths(token_ids: Sequence[Sequence[int]], card: model_pb2.ModelCard, field: str) -> None:
    """Raises:
    InvalidArgument: a text has no tokens, or more than the model takes.
    """
    for i, ids in enumerate(token_ids):
        if not len(ids):
            raise InvalidArgument(f"{field}[{i}] has no tokens", field=f"{field}[{i}]")
        if len(ids) > card.context_length:
            message = (
                f"{field}[{i}] has {len(ids)} tokens; the model takes at most {card.context_length}: "
                "shorten it, or have it cut with truncate"
            )
            raise InvalidArgument(message, field=f"{field}[{i}]", reason="PROMPT_TOO_LONG")
