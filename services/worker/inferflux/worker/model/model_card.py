"""Card of a model: what gateways and the scheduler learn of it (pure)."""

from __future__ import annotations

from inferflux.v1 import engine_pb2, model_pb2
from inferflux.worker.files.model_file import ModelFile


def new_card(name: str, role: model_pb2.ModelRole.ValueType, file: ModelFile) -> model_pb2.ModelCard:
    """The card of a model as its file describes it.

    Args:
        name: what clients call it.
    """
    return model_pb2.ModelCard(
        name=name,
        digest=file.digest,
        architecture=file.architecture,
        size_bytes=file.size_bytes,
        quantization=file.facts.quantization,
        is_moe=file.facts.is_moe,
        n_experts=file.facts.n_experts,
        n_active_experts=file.facts.n_active_experts,
        trained_context_length=file.context_length,
        token_embedding_length=file.facts.embedding,
        role=role,
        can_call_tools=file.facts.can_call_tools,
        has_generic_tools=file.facts.has_generic_tools,
    )


def learn_card(card: model_pb2.ModelCard, ready: engine_pb2.EngineReady, *, projector: str) -> None:
    """Write into a card what an engine says of its model.

    Args:
        projector: digest of the one that the engine has.
    """
    card.takes_images, card.takes_audio = ready.takes_images, ready.takes_audio
    card.projector = projector
    card.context_length = ready.context_length
    card.vocabulary_size = ready.vocabulary_size
    card.parameters = ready.parameters
    card.has_chat_template = ready.has_chat_template
    card.can_constrain = not ready.constraint_error
    card.can_speculate = not ready.speculation_error
    del card.expert_ranks[:]
    card.expert_ranks.extend(ready.expert_ranks)
    del card.paths[:]
    card.paths.extend(ready.paths)
    if card.role == model_pb2.MODEL_ROLE_EMBEDDING:
        card.embedding_length = ready.embedding_length
