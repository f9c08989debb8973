"""GET /v1/models and /v1/models/{id}: the models that requests may name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from inferflux.common.contract.models.model_names import allows
from inferflux.common.contract.models.model_roles import name_of
from inferflux.common.contract.requests.adapters import joined
from inferflux.gateway.http.errors.shapes import is_anthropic
from inferflux.gateway.http.front.endpoint import Request
from inferflux.gateway.models.models import ModelRegistry
from inferflux.v1 import device_pb2, model_pb2

# llama.cpp's word for a model that takes more than text.
_MULTIMODAL = "multimodal"
_SIZES = ((1e9, "B"), (1e6, "M"), (1e3, "K"))


class ListModels:
    """Lists models that a worker serves now, and models that a request has loaded."""

    def __init__(self, models: ModelRegistry, created: int) -> None:
        self._models = models
        self._created = created

    async def __call__(self, request: Request) -> None:
        await self._models.settled()
        allowed = request.caller.models
        known = await self._models.all_models()
        served = [
            model for model in known if allows(allowed, model.card.name) and (model.workers or model.places)
        ]
        if is_anthropic(request.exchange.given):
            await request.exchange.answer_json(anthropic_list_json(served, self._created))
            return
        data = [
            each
            for model in served
            for each in (to_json(model, self._created), *adapters_json(model, self._created))
        ]
        cards = (model.card for model in served for _ in range(1 + len(model.card.adapters)))
        theirs = [listed_json(card, each["id"]) for card, each in zip(cards, data, strict=True)]
        await request.exchange.answer_json({"object": "list", "data": data, "models": theirs})


class GetModel:
    """One that is known, served or not."""

    def __init__(self, models: ModelRegistry, created: int) -> None:
        self._models = models
        self._created = created

    async def __call__(self, request: Request) -> None:
        # As it is: a name that stands for any model is one for generations alone.
        name = str(request.exchange.path_params["model"])
        model, adapter = await self._models.named_for(request.caller, name, field="model")
        if is_anthropic(request.exchange.given):
            await request.exchange.answer_json(anthropic_json(model, self._created, adapter))
        elif adapter is not None:
            await request.exchange.answer_json(adapter_json(model, adapter, self._created))
        else:
            await request.exchange.answer_json(to_json(model, self._created))


def to_json(model: model_pb2.Model, created: int) -> dict[str, Any]:
    """A model as OpenAI's API has it, with what our clients ask for beside it. Pure."""
    card = model.card
    return {
        "id": card.name,
        "object": "model",
        "created": created,
        "owned_by": "inferflux",
        "root": card.name,
        "parent": None,
        "permission": [],
        # Under the names of vLLM, OpenRouter, Groq, LM Studio and llama.cpp's server, in this order.
        "max_model_len": card.context_length,
        "context_length": card.context_length,
        "context_window": card.context_length,
        "max_context_length": card.context_length,
        "meta": {
            "n_vocab": card.vocabulary_size,
            "n_ctx": card.context_length,
            "n_ctx_train": card.trained_context_length,
            "n_embd": card.token_embedding_length,
            "n_params": card.parameters,
            "size": card.size_bytes,
            "ftype": card.quantization,
        },
        "modalities": {"vision": card.takes_images, "audio": card.takes_audio},
        "digest": card.digest,
        "architecture": card.architecture,
        "role": name_of(card.role),
        "parameters": card.parameters,
        "size_bytes": card.size_bytes,
        "quantization": card.quantization,
        "kv_bytes_per_token": card.kv_bytes_per_token,
        "is_moe": card.is_moe,
        "n_experts": card.n_experts,
        "n_active_experts": card.n_active_experts,
        "expert_ranks": [_rank_json(rank) for rank in card.expert_ranks],
        "has_chat_template": card.has_chat_template,
        "can_call_tools": card.can_call_tools,
        "has_generic_tools": card.has_generic_tools,
        "can_constrain": card.can_constrain,
        "can_speculate": card.can_speculate if card.HasField("can_speculate") else None,
        "takes_images": card.takes_images,
        "takes_audio": card.takes_audio,
        "paths": {path.name: path.reason or path.is_on for path in card.paths},
        "workers": model.workers,
        "state": _state(model.state),
        "aliases": list(model.aliases),
        "is_default": model.is_default,
        "is_pinned": model.is_pinned,
        "places": [_place_json(place) for place in model.places],
    }


def _rank_json(rank: device_pb2.ExpertPlacement) -> dict[str, Any]:
    return {
        "device": rank.device,
        "endpoint": rank.endpoint,
        "first_layer": rank.first_layer,
        "last_layer": rank.last_layer,
    }


def _place_json(place: model_pb2.ModelPlace) -> dict[str, Any]:
    return {
        "host_id": place.host_id,
        "state": _state(place.state),
        "since": place.since_unix_ms // 1000,
        "path": place.path,
        "mmproj_path": place.mmproj_path,
        "digest": place.digest,
        "needs_bytes": place.needs_bytes,
    }


def _state(state: model_pb2.ModelState.ValueType) -> str:
    return model_pb2.ModelState.Name(state).removeprefix("MODEL_STATE_").lower()


def adapters_json(model: model_pb2.Model, created: int) -> list[dict[str, Any]]:
    """The adapters of a model, each as a model that requests may name. Pure."""
    return [adapter_json(model, adapter, created) for adapter in model.card.adapters]


def adapter_json(model: model_pb2.Model, adapter: model_pb2.AdapterCard, created: int) -> dict[str, Any]:
    """An adapter as a model: `parent` is the model that it changes. Pure."""
    return to_json(model, created) | {
        "id": joined(model.card.name, adapter.name),
        "parent": model.card.name,
        "digest": adapter.digest,
        "aliases": [],
    }


def anthropic_json(
    model: model_pb2.Model, created: int, adapter: model_pb2.AdapterCard | None = None
) -> dict[str, Any]:
    """A model, or an adapter of it as a model, as Anthropic's API has it.

    Args:
        created: seconds since the Unix epoch.
    """
    name = joined(model.card.name, adapter.name if adapter is not None else "")
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": model.card.context_length,
        "max_tokens": model.card.context_length,
    }


def anthropic_list_json(models: Sequence[model_pb2.Model], created: int) -> dict[str, Any]:
    """All of these and their adapters, on one page."""
    data = [
        anthropic_json(model, created, adapter)
        for model in models
        for adapter in (None, *model.card.adapters)
    ]
    return {
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": False,
    }


def listed_json(card: model_pb2.ModelCard, name: str) -> dict[str, Any]:
    """A model under one of its names, in the shape that llama.cpp's server has from Ollama."""
    more = [_MULTIMODAL] if card.takes_images or card.takes_audio else []
    return {
        "name": name,
        "model": name,
        "modified_at": "",
        "size": card.size_bytes,
        "digest": card.digest,
        "type": "model",
        "description": "",
        "tags": [],
        "capabilities": [*capabilities(card), *more],
        "parameters": "",
        "details": details(card),
    }


def capabilities(card: model_pb2.ModelCard) -> Iterator[str]:
    """Ollama's words for what a model can do."""
    if card.role == model_pb2.MODEL_ROLE_EMBEDDING:
        yield "embedding"
    if card.role not in (model_pb2.MODEL_ROLE_GENERATION, model_pb2.MODEL_ROLE_UNSPECIFIED):
        return
    yield "completion"
    if card.can_call_tools:
        yield "tools"
    if card.takes_images:
        yield "vision"
    if card.takes_audio:
        yield "audio"


def details(card: model_pb2.ModelCard) -> dict[str, Any]:
    """Say of which family a model is, and how large."""
    return {
        "parent_model": "",
        "format": "gguf",
        "family": card.architecture,
        "families": [card.architecture],
        "parameter_size": _size(card.parameters),
        "quantization_level": card.quantization,
    }


def _size(parameters: int) -> str:
    for unit, letter in _SIZES:
        if parameters >= unit:
            return f"{parameters / unit:.1f}{letter}"
    return str(parameters)
