"""Set-up of a model: its engine's configuration, its needs, and its card before it was ever loaded (pure)."""

from __future__ import annotations

import os
import re
from hashlib import blake2b
from pathlib import Path

from inferflux.api.speculation import SOURCES
from inferflux.common.contract.models.model_roles import embeds
from inferflux.v1 import device_pb2, engine_pb2, model_pb2
from inferflux.worker.files.device_wish import DeviceWish
from inferflux.worker.files.kv_types import KvTypes
from inferflux.worker.files.model_file import ModelFile
from inferflux.worker.files.needs import (
    EMBEDDING_SLOTS,
    EMBEDDING_TOKENS,
    Asked,
    Beside,
    Needs,
    embedder_needs_of,
    needs_of,
)
from inferflux.worker.settings import WorkerSettings

from .catalog import Known, Wish

# Memory of encoded images that may be asked for again, of each model.
_IMAGE_BYTES = 256 << 20
# States that an engine with a disk tier may hold until they are written: `MOST_WAITING_BYTES` of its disk.
WAITING_BYTES = 256 << 20
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - in it is a folder for this user alone
_PASSWORD = re.compile(r"(?<=//)[^@/,]*@")


def kv_types(settings: WorkerSettings) -> KvTypes:
    """Types of the keys and values of every model."""
    return KvTypes(settings.kv_type_k, settings.kv_type_v)


def model_needs(settings: WorkerSettings, wish: Wish, file: ModelFile, *, room: int) -> Needs:
    """Memory that a model needs.

    Args:
        room: bytes that all models of the process may take.
    """
    role = wish.role or file.facts.role
    asked = Asked(
        context_length=_first(wish.context_length, settings.context_length),
        slots=_slots(settings, wish, role),
        kv_cells=_first(wish.kv_cells, 0 if wish.kv_bytes else settings.kv_cells),
        kv_bytes=_first(wish.kv_bytes, 0 if wish.kv_cells else settings.kv_bytes),
        prefill_cells=settings.prefill_cells,
        types=kv_types(settings),
    )
    if embeds(role):
        return embedder_needs_of(file.size_bytes, file.context_length, file.facts, asked)
    return needs_of(
        file.size_bytes,
        file.context_length,
        file.facts,
        asked,
        room=room,
        beside=_beside(settings, wish),
        is_elsewhere=settings.device_wish.then(wish.devices).is_all_remote,
    )


def _beside(settings: WorkerSettings, wish: Wish) -> Beside:
    """Parts that a model which generates has beside its weights and its KV cache."""
    has_disk = settings.disk_path is not None and settings.disk_bytes > 0
    draft = wish.draft if wish.is_own else None
    return Beside(
        projector_bytes=wish.mmproj.size_bytes if wish.mmproj is not None else 0,
        kept_bytes=(_IMAGE_BYTES if wish.mmproj is not None else 0) + (WAITING_BYTES if has_disk else 0),
        draft_bytes=draft.size_bytes if draft is not None else 0,
        draft=draft.facts if draft is not None else None,
        is_deterministic=_is_deterministic(settings, wish),
    )


def _is_deterministic(settings: WorkerSettings, wish: Wish) -> bool:
    """True if requests of a model that leave it open are."""
    return settings.deterministic if wish.is_deterministic is None else wish.is_deterministic


def first_card(settings: WorkerSettings, wish: Wish, file: ModelFile, needs: Needs) -> model_pb2.ModelCard:
    """Card of a model before it was ever loaded. Requests are checked by it then."""
    facts = file.facts
    role = wish.role or facts.role
    asked = _first(wish.context_length, settings.context_length)
    length = asked or file.context_length
    if embeds(role):
        length = min(asked or EMBEDDING_TOKENS, file.context_length)
    return model_pb2.ModelCard(
        name=wish.name,
        digest=file.digest,
        architecture=file.architecture,
        size_bytes=file.size_bytes,
        context_length=min(length, needs.cells),
        trained_context_length=file.context_length,
        token_embedding_length=facts.embedding,
        vocabulary_size=facts.vocabulary_size,
        parameters=facts.parameters,
        has_chat_template=facts.has_chat_template,
        # Whether llguidance takes the vocabulary is known once it was loaded; it takes nearly all.
        can_constrain=not embeds(role),
        can_call_tools=facts.can_call_tools and not embeds(role),
        has_generic_tools=facts.has_generic_tools and not embeds(role),
        quantization=facts.quantization,
        is_moe=facts.is_moe,
        n_experts=facts.n_experts,
        n_active_experts=facts.n_active_experts,
        kv_bytes_per_token=0 if embeds(role) else facts.kv_bytes_per_token(kv_types(settings)),
        role=role,
        embedding_length=facts.embedding if role == model_pb2.MODEL_ROLE_EMBEDDING else 0,
        takes_images=wish.mmproj is not None and wish.mmproj.takes_images,
        takes_audio=wish.mmproj is not None and wish.mmproj.takes_audio,
        projector=wish.projector_digest,
    )


def engine_config(settings: WorkerSettings, known: Known) -> engine_pb2.EngineConfig:
    """Configuration of the engine of a known model (pure).

    The model of the process's own settings has its disk folder and its draft model; others have a folder of
    their own below it.
    """
    wish, file = known.wish, known.file
    is_own = wish.is_own
    # Sizes of its own are in what it needs already.
    takes_usual = is_own and not wish.has_sizes and not embeds(known.role)
    slots = _slots(settings, wish, known.role)
    devices = settings.device_wish.then(wish.devices)
    disk = settings.disk_path if settings.disk_bytes else None
    if disk is not None and not is_own:
        disk = disk / file.digest[:16]
    exchange = _exchange(settings) if settings.shm_bytes and disk is None else None
    return engine_pb2.EngineConfig(
        model_path=str(file.path),
        worker_id=known.worker_id,
        slots=slots,
        sequences=settings.sequences_for(slots),
        # An engine of llama.cpp has none until it has its part of the budget.
        host_bytes=settings.host_bytes if settings.engine == "null" else 0,
        host_eviction=settings.host_eviction,
        disk_path=str(disk or exchange or ""),
        disk_bytes=settings.disk_bytes if disk is not None else settings.shm_bytes,
        is_exchange_only=exchange is not None,
        disk_prompt_tokens=settings.disk_prompt_tokens,
        model_digest=file.digest,
        role=known.role,
        kv_cells=settings.kv_cells if takes_usual else known.needs.cells,
        kv_bytes=settings.kv_bytes if takes_usual else 0,
        kv_type_k=settings.kv_type_k,
        kv_type_v=settings.kv_type_v,
        prefill_cells=settings.prefill_cells,
        context_length=_first(wish.context_length, settings.context_length),
        threads=settings.threads,
        batch_tokens=settings.batch_tokens,
        gpu_layers=-1 if devices.gpu_layers is None else devices.gpu_layers,
        placement=_placement(devices, file),
        flash_attention=True,
        max_itl_factor=settings.max_itl_factor,
        step_limit_s=settings.step_limit_s,
        prefix_cache=settings.prefix_cache,
        deterministic=_is_deterministic(settings, wish),
        speculation=SOURCES[settings.speculation if is_own else "off"],
        draft_model_path=str(settings.draft_model) if is_own and settings.draft_model is not None else "",
        mmproj_path=str(wish.mmproj.path) if wish.mmproj is not None else "",
        mmproj_digest=wish.projector_digest,
        image_bytes=_IMAGE_BYTES,
    )


def _placement(devices: DeviceWish, file: ModelFile) -> device_pb2.DevicePlacement:
    """Devices that are asked for, and what has to be known of the file to use them."""
    asked = devices.to_message()
    if file.facts.is_moe:
        asked.expert_tensors.extend(file.facts.parts.expert_tensors)
        asked.n_experts = file.facts.n_experts
    return asked


def _exchange(settings: WorkerSettings) -> Path:
    """The folder in shared memory of the workers of this user that reach the same NATS servers."""
    servers = _PASSWORD.sub("", settings.nats_url)
    fleet = blake2b(servers.encode(), digest_size=8).hexdigest()
    return _SHARED_MEMORY / f"ifx_kv_{os.geteuid()}" / fleet


def with_trials(
    config: engine_pb2.EngineConfig, before: engine_pb2.EngineConfig | None
) -> engine_pb2.EngineConfig:
    """A configuration with the trials of an engine before, if that was started with the same (pure)."""
    if before is not None and before.HasField("trials") and _decisive(before) == _decisive(config):
        config.trials.CopyFrom(before.trials)
    return config


def _decisive(config: engine_pb2.EngineConfig) -> engine_pb2.EngineConfig:
    """Part of a configuration that trials depend on."""
    kept = engine_pb2.EngineConfig()
    kept.CopyFrom(config)
    for field in ("trials", "worker_id", "disk_path", "adapters", "host_bytes"):
        kept.ClearField(field)
    return kept


def learnt(before: model_pb2.ModelCard, engine: model_pb2.ModelCard) -> model_pb2.ModelCard:
    """A card with what the engine knows better."""
    card = model_pb2.ModelCard()
    card.CopyFrom(before)
    card.context_length = engine.context_length
    card.vocabulary_size = engine.vocabulary_size
    card.parameters = engine.parameters
    card.has_chat_template = engine.has_chat_template
    card.can_constrain = engine.can_constrain
    card.can_speculate = engine.can_speculate
    card.takes_images, card.takes_audio = engine.takes_images, engine.takes_audio
    card.projector = engine.projector
    del card.expert_ranks[:]
    card.expert_ranks.extend(engine.expert_ranks)
    card.embedding_length = engine.embedding_length
    del card.paths[:]
    card.paths.extend(engine.paths)
    return card


def _slots(settings: WorkerSettings, wish: Wish, role: model_pb2.ModelRole.ValueType) -> int:
    """Requests of a model that run at once."""
    return _first(wish.slots, EMBEDDING_SLOTS if embeds(role) else settings.slots)


def _first(wanted: int | None, default: int) -> int:
    """Wish for one model, else the one for all."""
    return default if wanted is None else wanted
