"""Names of spans and attributes.

Those of OpenTelemetry's conventions for generative AI are constants of our own: its package marks them as in
development, and moves them.
"""

from __future__ import annotations

from typing import Final

# Spans of the scheduler and of the worker. The gateway's are "<operation> <model>".
QUEUE: Final = "scheduler.queue"
YIELD: Final = "scheduler.fairness.yield"
RESUME: Final = "scheduler.fairness.resume"
PREEMPT: Final = "scheduler.fairness.preempt"
RETRY: Final = "scheduler.retry"
MOVE: Final = "scheduler.move"
RUN: Final = "worker.run"
KV_EXPORT: Final = "kv.export"
KV_TRANSFER: Final = "kv.transfer"
KV_IMPORT: Final = "kv.import"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
ERROR_TYPE: Final = "error.type"
MESSAGING_SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"

REQUEST_ID: Final = "inferflux.request_id"
TENANT: Final = "inferflux.tenant"
PRIORITY: Final = "inferflux.priority"
# What the client asked for, where its key's ceiling is lower.
ASKED_PRIORITY: Final = "inferflux.asked_priority"
OUTCOME: Final = "inferflux.outcome"
EPOCH: Final = "inferflux.epoch"
WORKER_ID: Final = "inferflux.worker_id"
SLOT: Final = "inferflux.slot"
# Where the cached input tokens were: `device`, `host` or `disk`.
CACHED_TIER: Final = "inferflux.cached_tier"
# Of the output tokens, those that came from the answer cache.
CACHED_OUTPUT_TOKENS: Final = "inferflux.cached_output_tokens"
COMPUTED_TOKENS: Final = "inferflux.computed_tokens"
REASON: Final = "inferflux.reason"
RESIDENCE: Final = "inferflux.residence"
# What carries KV state, the worker that it is from, and how much it is.
KV_BACKEND: Final = "inferflux.kv.backend"
KV_SOURCE: Final = "inferflux.kv.source"
KV_BYTES: Final = "inferflux.kv.bytes"
PREEMPTED_BY: Final = "inferflux.preempted_by"
