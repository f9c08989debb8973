"""Models as Ollama's API has them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from inferflux.common.contract.requests.adapters import joined
from inferflux.gateway.http.paths.models import capabilities, details
from inferflux.v1 import model_pb2

from .answer import rfc3339

Json: TypeAlias = dict[str, Any]


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
