"""Variables that were settings once, and what holds instead (pure)."""

from __future__ import annotations

from collections.abc import Mapping

GONE: Mapping[str, str] = {
    "INFERFLUX_AUDIT_FILE_BYTES": "a file of the audit trail is of one process and one day",
    "INFERFLUX_AUDIT_QUEUE_LIMIT": "16,384 lines of the audit trail may wait",
    "INFERFLUX_AUDIT_SYNC": "lines of the audit trail are synchronized to the disk",
    "INFERFLUX_CACHE_BLOCK_TOKENS": "a block of the prefix index has 16 tokens",
    "INFERFLUX_GATEWAY_CANCEL_TIMEOUT_S": "the value is 2 s",
    "INFERFLUX_GATEWAY_CONNECTION_AGE_S": "the value is 600 s",
    "INFERFLUX_GATEWAY_GAP_LIMIT_S": "the value is 30 s",
    "INFERFLUX_GATEWAY_HTTP_SEND_LIMIT_S": "the value is 30 s",
    "INFERFLUX_GATEWAY_IMAGE_PROCESSES": "2 images are decoded at the same time",
    "INFERFLUX_GATEWAY_IMAGE_QUEUE_LIMIT": "64 images may wait to be decoded",
    "INFERFLUX_GATEWAY_IMAGE_TIME_LIMIT_S": "the value is 10 s",
    "INFERFLUX_GATEWAY_SILENCE_LIMIT_S": "the value is 900 s",
    "INFERFLUX_GATEWAY_SILENCE_S": "the value is 4 s",
    "INFERFLUX_GATEWAY_TOKENIZER_LOAD_LIMIT_S": "the value is 30 s",
    "INFERFLUX_GATEWAY_TOKENIZER_MEMORY_BYTES": "the value is 4 GiB",
    "INFERFLUX_GATEWAY_TOKENIZER_QUEUE_LIMIT": "1,024 texts of a model may wait",
    "INFERFLUX_GATEWAY_TOKENIZER_RENDERED_BYTES": "the value is 8 MiB",
    "INFERFLUX_GATEWAY_TOKENIZER_THREADS": "a model has 2 threads",
    "INFERFLUX_GATEWAY_TOKENIZER_TIME_LIMIT_S": "the value is 2 s of CPU time",
    "INFERFLUX_POLICY_LEASE_S": "the value is 15 s",
    "INFERFLUX_POLICY_OIDC_KEYS_RETRY_S": "the value is 10 s",
    "INFERFLUX_POLICY_STORE_CHECK_INTERVAL_S": "the value is 1 s",
    "INFERFLUX_SCHEDULER_ACK_WAIT_S": "the value is 60 s",
    "INFERFLUX_SCHEDULER_AGING_S": "waiting for 2 s is worth one level of priority",
    "INFERFLUX_SCHEDULER_DISPATCH_TIMEOUT_S": "the value is 2 s",
    "INFERFLUX_SCHEDULER_MAX_BATCH_SIZE": "a batch has as many requests as its worker has free slots",
    "INFERFLUX_SCHEDULER_MAX_BATCH_TOKENS": "a batch has at most 8,192 prompt tokens",
    "INFERFLUX_SCHEDULER_MODEL_WAIT_S": "the value is 5 s",
    "INFERFLUX_SCHEDULER_MOVE_AFTER_S": "the value is 2 s",
    "INFERFLUX_SCHEDULER_SETTLE_S": "the value is 1.2 s",
    "INFERFLUX_SCHEDULER_STUCK_S": "the value is 120 s",
    "INFERFLUX_SCHEDULER_TICK_INTERVAL_S": "the value is 0.1 s",
    "INFERFLUX_SCHEDULER_UNREAD_LIMIT_S": "the value is 30 s",
    "INFERFLUX_SCHEDULER_WORKER_DEAD_S": "the value is 3 s",
    "INFERFLUX_WORKER_FLASH_ATTENTION": "attention is fused; INFERFLUX_CUDA_FLASH_ATTENTION decides on GPUs",
    "INFERFLUX_WORKER_HEARTBEAT_INTERVAL_S": "the value is 1 s",
    "INFERFLUX_WORKER_IMAGE_BYTES": "the value is 256 MiB",
    "INFERFLUX_WORKER_NULL_PREFILL_TOKENS_PER_S": "the value is 10,000",
}
"""What holds now, by variable. A start with one of them ends: its value would count for nothing."""


def refusals(environment: Mapping[str, str]) -> list[str]:
    """A line for each variable of an environment that is gone, or whose `..._FILE` is set.

    An empty value is as good as none.
    """
    return [
        f"{name}{suffix} is gone: {instead}"
        for name, instead in GONE.items()
        for suffix in ("", "_FILE")
        if environment.get(f"{name}{suffix}")
    ]
