"""Models as Anthropic's API has them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from inferflux.common.contract.requests.adapters import joined
from inferflux.v1 import model_pb2


def to_json(
    model: model_pb2.Model, created: int, adapter: model_pb2.AdapterCard | None = None
) -> dict[str, Any]:
    """A model, or an adapter of it as a model.

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


def list_json(models: Sequence[model_pb2.Model], created: int) -> dict[str, Any]:
    """All of these and their adapters, on one page."""
    data = [to_json(model, created, adapter) for model in models for adapter in (None, *model.card.adapters)]
    return {
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": False,
    }
