"""Roles of models, and their spelling. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from inferflux.common.contract.errors import InvalidArgument
from inferflux.v1 import model_pb2

RoleName = Literal["generation", "embedding", "rerank"]

ROLES: Final[Mapping[RoleName, model_pb2.ModelRole.ValueType]] = {
    "generation": model_pb2.MODEL_ROLE_GENERATION,
    "embedding": model_pb2.MODEL_ROLE_EMBEDDING,
    "rerank": model_pb2.MODEL_ROLE_RERANK,
}


def name_of(role: model_pb2.ModelRole.ValueType) -> RoleName:
    """Name of a role. An unspecified role is that of a model that generates."""
    return next((name for name, known in ROLES.items() if known == role), "generation")


_DOES = {
    model_pb2.MODEL_ROLE_UNSPECIFIED: "generates",
    model_pb2.MODEL_ROLE_GENERATION: "generates",
    model_pb2.MODEL_ROLE_EMBEDDING: "embeds",
    model_pb2.MODEL_ROLE_RERANK: "ranks",
}
_GENERATES = "Chat or Generate, which are /v1/chat/completions and /v1/completions over HTTP"
_USE = {
    model_pb2.MODEL_ROLE_UNSPECIFIED: _GENERATES,
    model_pb2.MODEL_ROLE_GENERATION: _GENERATES,
    model_pb2.MODEL_ROLE_EMBEDDING: "Embed, which is /v1/embeddings over HTTP",
    model_pb2.MODEL_ROLE_RERANK: "Rerank, which is /v1/rerank over HTTP",
}


def embeds(role: model_pb2.ModelRole.ValueType) -> bool:
    """True if an embedder serves it."""
    return role in (model_pb2.MODEL_ROLE_EMBEDDING, model_pb2.MODEL_ROLE_RERANK)


def check_role(card: model_pb2.ModelCard, wanted: model_pb2.ModelRole.ValueType) -> None:
    """A model can do what a request wants of it.

    Raises:
        InvalidArgument: it is there for something else; says for what.
    """
    if _DOES[card.role] != _DOES[wanted]:
        message = f"the model {card.name} {_DOES[card.role]}: use {_USE[card.role]}"
        raise InvalidArgument(message, field="model", reason="WRONG_MODEL_ROLE")
