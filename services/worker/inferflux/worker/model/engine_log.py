"""Log lines of a model's engine process. Each line has the model's name."""

from __future__ import annotations

from inferflux.common.prefixes.names import sharing_name
from inferflux.common.process import logs
from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2

log = logs.get("worker.engine")


def ready(
    model: str,
    report: engine_pb2.EngineReady,
    config: engine_pb2.EngineConfig,
    *,
    kv_types: str,
    model_context_length: int,
    is_first: bool,
) -> None:
    """It can run requests; and what of its configuration it has to do without.

    Args:
        kv_types: what keys and values are kept in.
        model_context_length: in tokens, as the model file says.
        is_first: whether it is the first engine of this model: what its devices lack is said once.
    """
    if report.context_length < model_context_length and not config.context_length:
        log.warning(
            "the context is shorter than the model's: the KV cache holds no more",
            model=model,
            context_length=report.context_length,
            model_context_length=model_context_length,
        )
    devices = report.device_context
    for warning in devices.warnings if is_first else ():
        log.warning("not on the devices that were asked for", model=model, why=warning)
    without = {
        "the prefill context is off: long prompts are chunked in mixed batches": report.prefill_context_error,
        "what requests have computed is not handed over"
        if config.is_exchange_only
        else "the disk tier is off": report.disk_error,
        "flash attention is not as asked for": devices.flash_attention_reason,
        "answers cannot be constrained": report.constraint_error,
        "requests are refused: they cannot be deterministic": report.deterministic_error,
    }
    if config.speculation > generation_pb2.SPECULATION_OFF:
        without["no tokens are drafted"] = report.speculation_error
    why_not_shared = report.prefix_sharing_reason if config.prefix_cache else ""
    if report.prefix_sharing == scheduler_pb2.PREFIX_SHARING_NONE:
        without["prefixes are not cached"] = why_not_shared
    elif why_not_shared:
        log.info("not every part of a prefix is shared", model=model, why=why_not_shared)
    for what, why in without.items():
        if why:
            log.warning(what, model=model, why=why)
    log.info(
        "ready",
        model=model,
        slots=report.slots,
        kv_cells=report.kv_cells,
        kv_bytes=report.kv_bytes,
        kv_types=kv_types,
        prefill_cells=report.prefill_cells,
        context_length=report.context_length,
        prefix_sharing=sharing_name(report.prefix_sharing),
        flash_attention=devices.flash_attention,
        gpu_layers=f"{devices.gpu_layers} of {devices.layers}",
        devices=[device.name for device in devices.devices if device.weights_bytes],
    )


def stepped(model: str, report: engine_pb2.StepReport) -> None:
    """Log the faults that a step found, if any."""
    if report.disk_error:
        log.warning("KV state could not be put where it should be", model=model, why=report.disk_error)
    if report.draft_model_error:
        log.error("the draft model drafts no more", model=model, why=report.draft_model_error)
    if report.ledger_repairs:
        found = list(report.ledger_repairs)
        log.error("KV cells were not as counted, and were dropped", model=model, found=found)


def flushed(model: str, report: engine_pb2.EngineFlushed) -> None:
    """It has put KV state on disk."""
    if report.states:
        log.info("KV state is on disk", model=model, states=report.states, bytes=report.bytes)


def cleared(model: str, cache_scope: str, report: scheduler_pb2.CacheCleared) -> None:
    """It has given cached prefixes up."""
    log.info(
        "the cache was cleared",
        model=model,
        cache_scope=cache_scope,
        sequences=report.sequences,
        cells=report.cells,
        host_bytes=report.host_bytes,
        disk_bytes=report.disk_bytes,
    )
