"""The ways to compute that an engine found to work at its start, as operators see them (pure)."""

from __future__ import annotations

from inferflux.v1 import engine_pb2, model_pb2, scheduler_pb2

# A heartbeat takes no longer ones.
_REASON_BYTES = 256
_NOT_SHARED = (scheduler_pb2.PREFIX_SHARING_NONE, scheduler_pb2.PREFIX_SHARING_UNSPECIFIED)


def paths_of(ready: engine_pb2.EngineReady) -> list[model_pb2.EnginePath]:
    """Each way, whether it is on, and why it is off or not wholly on."""
    devices = ready.device_context
    found: tuple[tuple[str, bool, str], ...] = (
        ("flash_attention", devices.flash_attention, devices.flash_attention_reason),
        ("prefill_context", ready.prefill_cells > 0, ready.prefill_context_error),
        ("prefix_sharing", ready.prefix_sharing not in _NOT_SHARED, ready.prefix_sharing_reason),
        ("constraints", not ready.constraint_error, ready.constraint_error),
        ("speculation", not ready.speculation_error, ready.speculation_error),
    )
    if ready.HasField("deterministic_error"):
        found = (*found, ("deterministic", not ready.deterministic_error, ready.deterministic_error))
    return [
        model_pb2.EnginePath(
            name=name, is_on=is_on, reason=why.encode()[:_REASON_BYTES].decode(errors="ignore")
        )
        for name, is_on, why in found
    ]
