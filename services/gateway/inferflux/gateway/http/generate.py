"""POST /generate: a prompt in, token chunks out."""

from __future__ import annotations

from functools import partial

from inferflux.common.errors import InvalidArgument
from inferflux.gateway.models import ModelRegistry
from inferflux.gateway.off_loop import off_loop_if_large

from .answering import Answering, Asked
from .bodies import parse
from .endpoint import Request
from .openai import generate
from .openai.bodies import GenerateBody


class Generate:
    """Continues a prompt, or answers a conversation. It streams unless `stream` is false."""

    def __init__(self, answering: Answering, models: ModelRegistry) -> None:
        self._answering = answering
        self._models = models

    async def __call__(self, request: Request) -> None:
        body, asked = await read(request.body, self._models)
        if body.stream is False:
            await self._answering.whole(request, asked, generate.ChunkAnswer())
        else:
            await self._answering.stream(request, asked, generate.ChunkStream())


async def read(data: bytes, models: ModelRegistry) -> tuple[GenerateBody, Asked]:
    """What a body, or a message of a websocket, asks for.

    Raises:
        InvalidArgument: it cannot be served.
    """
    body = await off_loop_if_large(len(data), lambda: parse(GenerateBody, data))
    model = body.model or await only_model(models)
    prompt = await off_loop_if_large(len(data), lambda: generate.to_request(body, default_model=model))
    return body, Asked([prompt], 1, partial(generate.field_names, body))


async def only_model(models: ModelRegistry) -> str:
    """The model that a request means which names none: the default one, else the only one that is served.

    Raises:
        InvalidArgument: no model is the default, and not exactly one is served.
    """
    await models.settled()
    if default := models.resolve(""):
        return default
    served = [model.card.name for model in await models.all_models() if model.workers]
    if len(served) != 1:
        message = f"name a model: {len(served)} are served"
        raise InvalidArgument(message, field="model")
    return served[0]
