"""POST /generate: a prompt in, token chunks out."""

from __future__ import annotations

from inferflux.common.errors import InvalidArgument
from inferflux.gateway.models import ModelRegistry

from .answering import Answering, Asked
from .bodies import off_loop_if_large, parse
from .endpoint import Request
from .openai import generate
from .openai.bodies import GenerateBody


class Generate:
    """Continues a prompt, or answers a conversation. It streams unless `stream` is false."""

    def __init__(self, answering: Answering, models: ModelRegistry) -> None:
        self._answering = answering
        self._models = models

    async def __call__(self, request: Request) -> None:
        body = await off_loop_if_large(request.body, lambda: parse(GenerateBody, request.body))
        model = body.model or await only_model(self._models)
        prompt = await off_loop_if_large(request.body, lambda: generate.to_request(body, default_model=model))
        asked = Asked([prompt], 1, generate.field_names(body))
        if body.stream is False:
            await self._answering.whole(request, asked, generate.ChunkAnswer())
        else:
            await self._answering.stream(request, asked, generate.ChunkStream())


async def only_model(models: ModelRegistry) -> str:
    """The model that a request means which names none.

    Raises:
        InvalidArgument: there is not exactly one.
    """
    await models.settled()
    served = [model.card.name for model in await models.all_models() if model.workers]
    if len(served) != 1:
        message = f"name a model: {len(served)} are served"
        raise InvalidArgument(message, field="model")
    return served[0]
