"""Check of a worker's heartbeat, for every service that receives one. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from inferflux.common.contract import checks, subjects
from inferflux.common.contract.epochs import MAX_EPOCH
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests import adapters
from inferflux.v1 import device_pb2, model_pb2, scheduler_pb2

MAX_MODELS = 64
# Requests that a worker may have, running, parked or swapped, and those it may say have ended. It takes up no
# more, and names the latest ends. By default the work queue holds no more jobs in all.
MAX_REQUESTS = 4096
MAX_TOKENS_PER_S = 1e9
MAX_BYTES_PER_S = 1e15
# Of ggml: 16 GPUs, and as many RPC servers, each with some.
MAX_DEVICES = 64
MAX_PATHS = 16
MAX_EXPERT_RANKS = 32
MAX_TEXT_BYTES = 256
_CELL_COUNTS = (
    "kv_cells",
    "kv_cells_reserved",
    "kv_cells_used",
    "kv_cells_cached",
    "kv_cells_shared",
    "kv_cells_high_water",
    "kv_cells_width",
    "kv_cells_holes",
)
_DIGEST = re.compile(r"[0-9a-f]{64}")


def parse_status(data: bytes, subject: str) -> scheduler_pb2.WorkerStatus:
    """Decode and check a heartbeat that came on `subject`.

    Raises:
        InvalidArgument: naming the field; it cannot be decoded, or is of another worker than the subject's.
    """
    return _parse(data, subject, with_requests=True)


def parse_without_requests(data: bytes, subject: str) -> scheduler_pb2.WorkerStatus:
    """The same without the requests that the worker has and had, which are not checked."""
    return _parse(data, subject, with_requests=False)


def _parse(data: bytes, subject: str, *, with_requests: bool) -> scheduler_pb2.WorkerStatus:
    status = checks.decode(scheduler_pb2.WorkerStatus, data)
    if not with_requests:
        del status.residents[:], status.finished[:]
    check_status(status)
    if subject != subjects.worker_status(status.worker_id):
        raise InvalidArgument("worker_id is another than the subject's", field="worker_id")
    return status


def check_status(status: scheduler_pb2.WorkerStatus) -> None:
    """See that a heartbeat is one that a worker could have sent.

    Raises:
        InvalidArgument: naming the field.
    """
    checks.check_token(status.worker_id, "worker_id")
    checks.check_token(status.incarnation, "incarnation")
    checks.check_known(status.state, scheduler_pb2.WorkerState, "state")
    checks.check_range(status.slots, 0, checks.MAX_SEQUENCES, "slots")
    checks.check_range(status.cached_sequences, 0, checks.MAX_SEQUENCES, "cached_sequences")
    for field in _CELL_COUNTS:
        checks.check_range(getattr(status, field), 0, checks.MAX_TOKENS, field)
    for field in ("prefill_tokens_per_s", "decode_tokens_per_s"):
        checks.check_range(getattr(status, field), 0.0, MAX_TOKENS_PER_S, field)
    checks.check_text(status.host, MAX_TEXT_BYTES, "host")
    checks.check_text(status.exchange, MAX_TEXT_BYTES, "exchange")
    if status.pool:
        checks.check_token(status.pool, "pool")
    if status.zone:
        checks.check_token(status.zone, "zone")
    checks.check_text(status.kv_types, MAX_TEXT_BYTES, "kv_types")
    checks.check_text(status.prefix_sharing_reason, MAX_TEXT_BYTES, "prefix_sharing_reason")
    checks.check_range(status.started_unix_ms, 0, checks.MAX_UNIX_MS, "started_unix_ms")
    checks.check_count(status.models, MAX_MODELS, "models")
    for card in status.models:
        check_card(card)
    if len({card.name for card in status.models}) < len(status.models):
        raise InvalidArgument("two models of a worker have one name", field="models.name")
    _check_transfers(status)
    if status.HasField("device_context"):
        _check_devices(status.device_context)
    checks.check_count(status.residents, MAX_REQUESTS, "residents")
    for request in status.residents:
        _check_resident(request)
    check_requests(status.finished, "finished")


def _check_transfers(status: scheduler_pb2.WorkerStatus) -> None:
    """See how it takes KV state from others, and others from it. A role of a later version is allowed."""
    source = status.kv_source
    if status.HasField("kv_source"):
        checks.check_token(source.worker_id, "kv_source.worker_id")
        checks.check_token(source.incarnation, "kv_source.incarnation")
    for field in ("exchange", "address", "ticket"):
        checks.check_text(getattr(source, field), MAX_TEXT_BYTES, f"kv_source.{field}")
    rate = status.kv_transfers.bytes_per_s
    checks.check_range(rate, 0.0, MAX_BYTES_PER_S, "kv_transfers.bytes_per_s")


def check_card(card: model_pb2.ModelCard) -> None:
    """See that a model card can be used: gateways fetch a tokenizer by its digest.

    Raises:
        InvalidArgument: naming the field.
    """
    checks.check_model_name(card.name, field="models.name")
    if card.digest and not _DIGEST.fullmatch(card.digest):
        raise InvalidArgument("a model's digest is 64 hex digits", field="models.digest")
    checks.check_range(card.context_length, 0, checks.MAX_TOKENS, "models.context_length")
    checks.check_range(card.vocabulary_size, 0, checks.MAX_TOKENS, "models.vocabulary_size")
    for name in ("embedding_length", "trained_context_length", "token_embedding_length"):
        checks.check_range(getattr(card, name), 0, checks.MAX_TOKENS, f"models.{name}")
    if card.role:  # unspecified of a worker that does not tell
        checks.check_known(card.role, model_pb2.ModelRole, "models.role")
    checks.check_text(card.architecture, MAX_TEXT_BYTES, "models.architecture")
    checks.check_text(card.quantization, MAX_TEXT_BYTES, "models.quantization")
    checks.check_count(card.expert_ranks, MAX_EXPERT_RANKS, "models.expert_ranks")
    for rank in card.expert_ranks:
        checks.check_text(rank.device, MAX_TEXT_BYTES, "models.expert_ranks.device")
        checks.check_text(rank.endpoint, MAX_TEXT_BYTES, "models.expert_ranks.endpoint")
        checks.check_known(rank.kind, device_pb2.DeviceKind, "models.expert_ranks.kind")
    adapters.check_cards(card, "models.adapters")
    checks.check_count(card.paths, MAX_PATHS, "models.paths")
    for path in card.paths:
        checks.check_token(path.name, "models.paths.name")
        checks.check_text(path.reason, MAX_TEXT_BYTES, "models.paths.reason")


def _check_devices(context: device_pb2.DeviceContext) -> None:
    checks.check_count(context.devices, MAX_DEVICES, "device_context.devices")
    for device in context.devices:
        for field in ("name", "description", "backend", "endpoint"):
            checks.check_text(getattr(device, field), MAX_TEXT_BYTES, f"device_context.devices.{field}")
        checks.check_known(device.kind, device_pb2.DeviceKind, "device_context.devices.kind")
    checks.check_text(context.flash_attention_reason, MAX_TEXT_BYTES, "device_context.flash_attention_reason")
    checks.check_count(
        context.flash_attention_by_context, MAX_PATHS, "device_context.flash_attention_by_context"
    )
    for name in context.flash_attention_by_context:
        checks.check_token(name, "device_context.flash_attention_by_context")
    checks.check_count(context.warnings, MAX_DEVICES, "device_context.warnings")
    for warning in context.warnings:
        checks.check_text(warning, MAX_TEXT_BYTES, "device_context.warnings")


def check_identity(tenant: str, request_id: str, epoch: int, field: str) -> None:
    """Raises InvalidArgument when a request, or an attempt, could not have that name."""
    checks.check_token(tenant, f"{field}.tenant")
    checks.check_token(request_id, f"{field}.request_id")
    checks.check_range(epoch, 0, MAX_EPOCH, f"{field}.epoch")


def check_requests(requests: Sequence[scheduler_pb2.RequestEpoch], field: str) -> None:
    """Raises InvalidArgument when a list of requests is too long, or names one that cannot be."""
    checks.check_count(requests, MAX_REQUESTS, field)
    # Heartbeats name all that ended within half a minute, of few tenants: this loop is a cost.
    is_safe = subjects.is_safe_token
    tenants: set[str] = set()
    for request in requests:
        tenant, request_id, epoch = request.tenant, request.request_id, request.epoch
        if epoch > MAX_EPOCH or not is_safe(request_id) or not (tenant in tenants or is_safe(tenant)):
            check_identity(tenant, request_id, epoch, field)
        tenants.add(tenant)


def _check_resident(request: scheduler_pb2.ResidentRequest) -> None:
    check_identity(request.tenant, request.request_id, request.epoch, "residents")
    checks.check_range(request.run, 0, MAX_EPOCH, "residents.run")
    if request.residence:  # unspecified while its engine has not reported it
        checks.check_known(request.residence, scheduler_pb2.Residence, "residents.residence")
    if request.residence == scheduler_pb2.RESIDENCE_RUNNING:
        checks.check_range(request.slot, 0, checks.MAX_SEQUENCES - 1, "residents.slot")
    for field in ("prompt_tokens", "generated_tokens", "computed_tokens"):
        checks.check_range(getattr(request, field), 0, checks.MAX_TOKENS, f"residents.{field}")
