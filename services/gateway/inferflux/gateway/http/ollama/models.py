"""Models as Ollama's API has them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from inferflux.common.contract.requests.adapters import joined
from inferflux.v1 import model_pb2

from .answer import rfc3339

Json: TypeAlias = dict[str, Any]

_SIZES = ((1e9, "B"), (1e6, "M"), (1e3, "K"))


def tags_json(model: model_pb2.Model, created: int) -> Iterator[Json]:
    """A model and its adapters, as a list has them.

    Args:
        created: seconds since the Unix epoch.
    """
    card = model.card
    for adapter in (None, *card.adapters):
        name = joined(card.name, adapter.name) if adapter is not None else f"{card.name}:latest"
        yield {
            "name": name,
            "model": name,
            "modified_at": rfc3339(created),
            "size": card.size_bytes,
            "digest": adapter.digest if adapter is not None else card.digest,
            "details": details(card),
        }


def running_json(model: model_pb2.Model, created: int) -> Iterator[Json]:
    """The same, of a model that a worker serves. It stays until it makes room, so it expires never."""
    for one in tags_json(model, created):
        rest = {key: value for key, value in one.items() if key != "modified_at"}
        more = {"expires_at": "9999-12-31T23:59:59Z", "size_vram": 0}
        yield rest | more | {"context_length": model.card.context_length}


def show_json(model: model_pb2.Model, created: int) -> Json:
    """Describe a model."""
    card = model.card
    embedding = (
        {f"{card.architecture}.embedding_length": card.embedding_length} if card.embedding_length else {}
    )
    return {
        "license": "",
        "modelfile": "",
        "parameters": "",
        "template": "",
        "modified_at": rfc3339(created),
        "details": details(card),
        "model_info": {
            "general.architecture": card.architecture,
            "general.parameter_count": card.parameters,
            f"{card.architecture}.context_length": card.context_length,
        }
        | embedding,
        "capabilities": [*capabilities(card)],
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


def details(card: model_pb2.ModelCard) -> Json:
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
