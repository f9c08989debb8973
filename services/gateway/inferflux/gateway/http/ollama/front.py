"""The paths of Ollama's API. Its lines are another spelling of the chunks that other fronts send."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from inferflux.common.contract.errors import InferFluxError
from inferflux.common.contract.models.model_names import allows
from inferflux.gateway.http.errors.errors import in_words_of
from inferflux.gateway.http.front.bodies import parse
from inferflux.gateway.http.front.endpoint import Request
from inferflux.gateway.http.front.exchange import Exchange
from inferflux.gateway.http.paths.answering import Answering, Asked, GenerationRequest
from inferflux.gateway.http.paths.reading import BodyReader
from inferflux.gateway.models.models import ModelRegistry
from inferflux.gateway.request.embeddings import Embeddings
from inferflux.v1 import model_pb2

from . import models as shapes
from . import request as requests
from .answer import Head, LineStream, Says, WholeAnswer, chat_says, generate_says
from .bodies import (
    OllamaChatBody,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaGenerateBody,
    OllamaPromptBody,
    OllamaShowBody,
)

# Of Ollama whose API this is: its clients ask before they use what is newer.
VERSION = "0.13.0"
_NS_PER_S = 1_000_000_000
EMBEDDING = model_pb2.MODEL_ROLE_EMBEDDING
Clock = Callable[[], float]


class _Prompted:
    """Answers a body, with lines unless `stream` is false."""

    def __init__(
        self, answering: Answering, models: ModelRegistry, bodies: BodyReader, clock: Clock = time.time
    ) -> None:
        self._answering = answering
        self._models = models
        self._bodies = bodies
        self._clock = clock

    async def _answer(
        self, request: Request, body: OllamaPromptBody, asked: GenerationRequest, says: Says
    ) -> None:
        work = Asked([asked], 1, partial(requests.field_names, body))
        head = Head(body.model, self._clock)
        has_logprobs = bool(body.logprobs)
        if body.stream is False:
            await self._answering.whole(request, work, WholeAnswer(head, says, has_logprobs=has_logprobs))
        else:
            await self._answering.stream(request, work, LineStream(head, says, has_logprobs=has_logprobs))

    async def _load(self, request: Request, body: OllamaPromptBody, says: Says) -> None:
        """Answer a body without a prompt, with which clients have a model loaded, or unloaded."""
        await self._models.named_for(request.caller, requests.name_of(body.model), field="model")
        is_left = body.keep_alive in (0, "0")
        head = Head(body.model, self._clock)
        await request.exchange.answer_json(head.empty(says, "unload" if is_left else "load"))


class OllamaChat(_Prompted):
    """POST /api/chat."""

    async def __call__(self, request: Request) -> None:
        body, asked = await self._bodies.read(
            request.caller, request.body, OllamaChatBody, requests.chat_request
        )
        if body.messages:
            await self._answer(request, body, asked, chat_says)
        else:
            await self._load(request, body, chat_says)


class OllamaGenerate(_Prompted):
    """POST /api/generate."""

    async def __call__(self, request: Request) -> None:
        body, asked = await self._bodies.read(
            request.caller, request.body, OllamaGenerateBody, requests.generate_request
        )
        if body.prompt:
            await self._answer(request, body, asked, generate_says)
        else:
            await self._load(request, body, generate_says)


class OllamaEmbed:
    """POST /api/embed, and /api/embeddings, which embeds one text."""

    def __init__(
        self, work: Embeddings, bodies: BodyReader, kind: type[OllamaEmbedBody | OllamaEmbeddingsBody]
    ) -> None:
        self._work = work
        self._bodies = bodies
        self._kind = kind

    async def __call__(self, request: Request) -> None:
        began_s = time.monotonic()
        body, asked = await self._bodies.read(
            request.caller, request.body, self._kind, requests.embed_request, EMBEDDING
        )
        try:
            async with request.exchange.cancelled_when_gone():
                found = await self._work.vectors(request.exchange.context, request.caller, asked)
        except InferFluxError as error:
            outer = "input" if isinstance(body, OllamaEmbedBody) else "prompt"
            raise in_words_of(error, {"inputs": outer}) from None
        vectors = [vector.tolist() for vector in found.vectors]
        if isinstance(body, OllamaEmbeddingsBody):
            await request.exchange.answer_json({"embedding": vectors[0]})
            return
        answer = {
            "model": body.model,
            "embeddings": vectors,
            "total_duration": round((time.monotonic() - began_s) * _NS_PER_S),
            "load_duration": 0,
            "prompt_eval_count": found.usage.prompt_tokens,
        }
        await request.exchange.answer_json(answer)


class OllamaModels:
    """GET /api/tags: those that a worker serves now and those that a request has loaded; GET /api/ps: the
    first ones alone."""

    def __init__(self, models: ModelRegistry, created: int, *, is_running: bool) -> None:
        self._models = models
        self._created = created
        self._is_running = is_running

    async def __call__(self, request: Request) -> None:
        await self._models.settled()
        known = [
            model
            for model in await self._models.all_models()
            if allows(request.caller.models, model.card.name)
            and (model.workers or (model.places and not self._is_running))
        ]
        told = shapes.running_json if self._is_running else shapes.tags_json
        answer = {"models": [one for model in known for one in told(model, self._created)]}
        await request.exchange.answer_json(answer)


class OllamaShow:
    """POST /api/show."""

    def __init__(self, models: ModelRegistry, created: int) -> None:
        self._models = models
        self._created = created

    async def __call__(self, request: Request) -> None:
        body = parse(OllamaShowBody, request.body)
        name = requests.name_of(body.model or body.name)
        model, _ = await self._models.named_for(request.caller, name, field="model")
        await request.exchange.answer_json(shapes.show_json(model, self._created))


async def tell_version(exchange: Exchange) -> None:
    """GET /api/version."""
    await exchange.answer_json({"version": VERSION})
