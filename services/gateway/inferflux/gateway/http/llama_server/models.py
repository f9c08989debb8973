"""Models as llama.cpp's server lists them beside OpenAI's `data`. Pure."""

from __future__ import annotations

from typing import Any

from inferflux.gateway.http.ollama.models import capabilities, details
from inferflux.v1 import model_pb2

# llama.cpp's word for a model that takes more than text.
_MULTIMODAL = "multimodal"


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
