"""Every NATS name InferFlux uses, in the order a request meets them. Nothing else spells one, but
`inferflux.api.token_subjects` those that clients read.

Subjects go from general to specific, so that a prefix can be granted to a reader:
`inferflux.v1.tokens.acme.>` is every token stream of the tenant `acme`.
"""

from __future__ import annotations

import re

from inferflux.api import token_subjects

from .partitions import Partition, shard_of

ROOT = "inferflux.v1"

# JetStream streams and buckets.
JOBS_STREAM = "INFERFLUX_JOBS"
TOKENS_STREAM = token_subjects.TOKENS_STREAM
TOKENIZERS_BUCKET = "inferflux-tokenizers"
SCHEDULER_CONSUMER = "scheduler"
TOKENIZERS_STREAM = f"OBJ_{TOKENIZERS_BUCKET}"
# What requests show models, for some hours.
IMAGES_BUCKET = "inferflux-images"
IMAGES_STREAM = f"OBJ_{IMAGES_BUCKET}"
# KV state that one worker sends to another, until it is taken.
KV_BUCKET = "inferflux-kv"
KV_STREAM = f"OBJ_{KV_BUCKET}"
# Who leads, and what was changed live.
SCHEDULERS_BUCKET = "inferflux-schedulers"
SCHEDULERS_STREAM = f"KV_{SCHEDULERS_BUCKET}"
# JetStream publishes to it, with the stream's name in place of the star, when a stream was deleted.
ANY_STREAM_DELETED = "$JS.EVENT.ADVISORY.STREAM.DELETED.*"
# The same, when servers of a cluster agreed on who leads the stream of tokens.
TOKENS_LED = f"$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.{TOKENS_STREAM}"
# For asking whether it still writes; no key is called so.
SCHEDULERS_PROBE = f"$KV.{SCHEDULERS_BUCKET}.probe"
STREAMS = (JOBS_STREAM, TOKENS_STREAM, TOKENIZERS_STREAM, IMAGES_STREAM, KV_STREAM, SCHEDULERS_STREAM)

# 1. gateway -> work queue -> scheduler
JOBS_ALL = f"{ROOT}.jobs.>"
# For asking the queue whether it still writes. A model's name is one token.
JOBS_PROBE = f"{ROOT}.jobs.probe.writes"
# 2. scheduler -> worker: `worker_batch`, `worker_probe`, `worker_command`
# 3. worker -> scheduler
SCHEDULER_EVENTS = f"{ROOT}.scheduler.events"
WORKER_STATUS_ALL = f"{ROOT}.worker.*.status"
HOST_STATUS_ALL = f"{ROOT}.host.*.status"
# 4. worker -> anyone with the right: `tokens`
TOKENS_PREFIX = token_subjects.TOKENS_PREFIX
TOKENS_ALL = f"{TOKENS_PREFIX}>"
# beside the request lifecycle
CANCEL_ALL = f"{ROOT}.cancel.>"
# gateway -> workers, where tokens were lost: `wanted`
WANTED_ALL = f"{ROOT}.wanted.>"
SCHEDULER_READERS = f"{ROOT}.scheduler.readers"
SCHEDULER_STATUS = f"{ROOT}.scheduler.status"
SCHEDULER_ADMIN = f"{ROOT}.scheduler.admin"
SCHEDULER_LEADER = f"{ROOT}.scheduler.leader"
# scheduler -> schedulers, where models are divided
SCHEDULER_ALIVE = f"{ROOT}.scheduler.alive"
SCHEDULER_SERVED = f"{ROOT}.scheduler.served"


is_safe_token = token_subjects.is_safe_token
tokens = token_subjects.tokens
inbox_prefix = token_subjects.inbox_prefix
inbox_prefix_of = token_subjects.inbox_prefix_of


def escape(name: str) -> str:
    """Make any name one subject token, distinct names staying distinct: other characters become =XX."""
    encoded = name.encode()
    return "".join(chr(b) if re.fullmatch(rb"[A-Za-z0-9_-]", bytes([b])) else f"={b:02X}" for b in encoded)


def jobs(model: str) -> str:
    return f"{ROOT}.jobs.{shard_of(model)}.{escape(model)}"


def jobs_of(partition: Partition) -> list[str]:
    """Subjects that have the jobs of a partition; none: it has all."""
    return [] if partition.is_whole else [f"{ROOT}.jobs.{shard}.*" for shard in partition.shards]


def cancel(tenant: str, request_id: str) -> str:
    return f"{ROOT}.cancel.{tenant}.{request_id}"


def wanted(tenant: str, request_id: str) -> str:
    return f"{ROOT}.wanted.{tenant}.{request_id}"


def scheduler_consumer(partition: Partition) -> str:
    """The durable that takes the jobs of a partition of models off the work queue."""
    return SCHEDULER_CONSUMER if partition.is_whole else f"{SCHEDULER_CONSUMER}-{partition.name}"


def scheduler_lease(partition: Partition) -> str:
    """Key of SCHEDULERS_BUCKET."""
    return f"lease.{partition.name}"


def killer_images(partition: Partition) -> str:
    """Key of SCHEDULERS_BUCKET."""
    return f"killers.{partition.name}"


def tenant_shares(partition: Partition) -> str:
    """Key of SCHEDULERS_BUCKET."""
    return f"shares.{partition.name}"


def worker_batch(worker_id: str) -> str:
    return f"{ROOT}.worker.{worker_id}.batch"


def worker_probe(worker_id: str) -> str:
    """Empty requests, with an empty reply: whether the worker is there."""
    return f"{ROOT}.worker.{worker_id}.probe"


def worker_command(worker_id: str) -> str:
    return f"{ROOT}.worker.{worker_id}.command"


def worker_status(worker_id: str) -> str:
    return f"{ROOT}.worker.{worker_id}.status"


def worker_kv(worker_id: str) -> str:
    """Requests of other workers, for packets of KV state."""
    return f"{ROOT}.worker.{worker_id}.kv"


def host_status(host_id: str) -> str:
    return f"{ROOT}.host.{host_id}.status"


def host_command(host_id: str) -> str:
    """Requests of schedulers, to load models and to unload them."""
    return f"{ROOT}.host.{host_id}.command"


def matches(pattern: str, subject: str) -> bool:
    """A subject is one of those that a pattern with `*` (one token) and `>` (the rest) stands for."""
    wanted, given = pattern.split("."), subject.split(".")
    for i, part in enumerate(wanted):
        if part == ">":
            return len(given) > i
        if i >= len(given) or part not in ("*", given[i]):
            return False
    return len(wanted) == len(given)
