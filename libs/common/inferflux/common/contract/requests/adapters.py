"""LoRA adapters of models: how requests name them, and what may be said of one. Pure."""

from __future__ import annotations

import re

from inferflux.common.contract import checks
from inferflux.common.contract.errors import InvalidArgument
from inferflux.v1 import model_pb2

MAX_ADAPTERS = 64
"""Most adapters of one model."""
MAX_SCALE = 1000.0
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_BETWEEN = ":"
_MAX_BYTES = 1 << 50


def joined(model: str, adapter: str) -> str:
    """Name that clients use for an adapter of a model; the model's own name without an adapter."""
    return f"{model}{_BETWEEN}{adapter}" if adapter else model


def split(name: str) -> tuple[str, str]:
    """(the model, the adapter) that a name of both means; no adapter where it can be of none."""
    model, between, adapter = name.rpartition(_BETWEEN)
    return (model, adapter) if between and model and _NAME.fullmatch(adapter) else (name, "")


def is_name(text: str) -> bool:
    """True if an adapter can have this name."""
    return _NAME.fullmatch(text) is not None


def check_name(name: str, field: str) -> None:
    """Raises InvalidArgument for what no adapter can be called."""
    if not is_name(name):
        raise InvalidArgument(f"{field} must be 1 to 64 of A-Z a-z 0-9 . _ -", field=field)


def check_scale(scale: float, field: str) -> None:
    """Raises InvalidArgument for a scale that is 0, not finite, or beyond any sense."""
    checks.check_range(scale, -MAX_SCALE, MAX_SCALE, field)
    if scale == 0:
        raise InvalidArgument(f"{field} must not be 0: the adapter would change nothing", field=field)


def check_chosen(adapter: str, digest: str, field: str = "adapter") -> None:
    """See that a job names an adapter as gateways do, or none.

    Raises:
        InvalidArgument: naming the field.
    """
    if adapter or digest:
        check_name(adapter, field)
        check_digest(digest, f"{field}_digest")


def check_digest(digest: str, field: str) -> None:
    """Raises InvalidArgument for what is no digest."""
    if not _DIGEST.fullmatch(digest):
        raise InvalidArgument("an adapter's digest is 64 hex digits", field=field)


def check_cards(card: model_pb2.ModelCard, field: str) -> None:
    """See that a model's card could list these adapters.

    Raises:
        InvalidArgument: naming the field.
    """
    checks.check_count(card.adapters, MAX_ADAPTERS, field)
    for adapter in card.adapters:
        check_name(adapter.name, f"{field}.name")
        check_digest(adapter.digest, f"{field}.digest")
        check_scale(adapter.scale, f"{field}.scale")
        checks.check_range(adapter.size_bytes, 0, _MAX_BYTES, f"{field}.size_bytes")
    names = [adapter.name for adapter in card.adapters]
    if len(set(names)) < len(names):
        raise InvalidArgument("two adapters of a model have one name", field=f"{field}.name")


def adapter_of(card: model_pb2.ModelCard, name: str) -> model_pb2.AdapterCard | None:
    """The adapter of this name; None where the model has none."""
    return next((adapter for adapter in card.adapters if adapter.name == name), None)
