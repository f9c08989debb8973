"""GET /v1/models and /v1/models/{id}: the models that requests may name."""

from __future__ import annotations

from typing import Any

from inferflux.common import checks
from inferflux.common.model_names import allows
from inferflux.gateway.models import ModelRegistry
from inferflux.v1 import model_pb2

from .endpoint import Request


class ListModels:
    """Those that a worker serves now, and those that a request has loaded."""

    def __init__(self, models: ModelRegistry, created: int) -> None:
        self._models = models
        self._created = created

    async def __call__(self, request: Request) -> None:
        await self._models.settled()
        allowed = request.caller.models
        known = [model for model in await self._models.all_models() if allows(allowed, model.card.name)]
        data = [to_json(model, self._created) for model in known if model.workers or model.places]
        await request.exchange.answer_json({"object": "list", "data": data})


class GetModel:
    """One that is known, served or not."""

    def __init__(self, models: ModelRegistry, created: int) -> None:
        self._models = models
        self._created = created

    async def __call__(self, request: Request) -> None:
        await self._models.settled()
        name = self._models.resolve(str(request.exchange.path_params["model"]))
        checks.check_model_name(name)
        request.caller.check_model(name)
        await request.exchange.answer_json(to_json(await self._models.get(name), self._created))


def to_json(model: model_pb2.Model, created: int) -> dict[str, Any]:
    """A model as OpenAI's API has it, with what our clients ask for beside it. Pure."""
    card = model.card
    return {
        "id": card.name,
        "object": "model",
        "created": created,
        "owned_by": "inferflux",
        "max_model_len": card.context_length,
        "digest": card.digest,
        "architecture": card.architecture,
        "parameters": card.parameters,
        "has_chat_template": card.has_chat_template,
        "takes_images": card.takes_images,
        "workers": model.workers,
        "state": model_pb2.ModelState.Name(model.state).removeprefix("MODEL_STATE_").lower(),
        "aliases": list(model.aliases),
    }
