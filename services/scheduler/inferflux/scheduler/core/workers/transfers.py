"""Which worker can fetch KV state from which, and how long that takes (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from inferflux.scheduler.core.types.jobs import Job

from .slots import WorkerSlots

# Bytes a second until a worker has measured its own: through shared memory, and over a network.
_SHARED_RATE = 1e9
_NETWORK_RATE = 1e8
# Asking, and the turns of two engines that a piece waits for.
_DELAY_S = 0.02
# Tokens more that another worker must have cached before a prefix is fetched from it.
LEAST_PREFIX = 256


def has_takable_state(job: Job) -> bool:
    """True if other workers can begin with what one has computed of the request: they take it through their
    prefix cache."""
    request = job.request
    params = request.params
    is_apart = request.HasField("embedding") or params.deterministic or params.HasField("prompt_logprobs")
    return not (is_apart or request.images)


def can_take(taker: WorkerSlots, giver: WorkerSlots, model: str) -> bool:
    """True if one worker can fetch a model's state from the other, as far as their heartbeats say."""
    theirs, own = giver.status, taker.status
    if not theirs.HasField("kv_source") or taker.worker_id == giver.worker_id or not taker.shares_prefixes:
        return False
    if not (own.HasField("kv_source") or own.HasField("kv_transfers")):
        return False
    if taker.digests.get(model) != giver.digests.get(model) or own.kv_types != theirs.kv_types:
        return False
    source = theirs.kv_source
    return _is_shared(taker, giver) or bool(source.address) or source.takes_nats


def _is_shared(taker: WorkerSlots, giver: WorkerSlots) -> bool:
    """True if the state need not be sent: both have the folder."""
    exchange = giver.status.kv_source.exchange
    return bool(exchange) and exchange == taker.exchange


def transfer_s(tokens: int, taker: WorkerSlots, giver: WorkerSlots) -> float:
    """Seconds that the state of these tokens takes from one worker to the other, by the rate of late."""
    status = taker.status
    rate = status.kv_transfers.bytes_per_s or (_SHARED_RATE if _is_shared(taker, giver) else _NETWORK_RATE)
    return _DELAY_S + tokens * status.kv_bytes / max(1, status.kv_cells) / rate


def prefix_giver(job: Job, taker: WorkerSlots, workers: Mapping[str, WorkerSlots]) -> WorkerSlots | None:
    """The worker from which another had better fetch a prefix of a request than compute it.

    Args:
        taker: is to run the request.
        workers: that live, by id.

    Returns:
        None where computing is as fast, as long as its speed is not known, and where no worker has more.
    """
    rate = taker.status.prefill_tokens_per_s
    if not job.cached_on or not rate or not has_takable_state(job):
        return None
    best, saved_s = None, 0.0
    own = job.cached_on.get(taker.worker_id, 0)
    for worker_id, cached in job.cached_on.items():
        giver, more = workers.get(worker_id), cached - own
        if giver is None or more < LEAST_PREFIX or not can_take(taker, giver, job.model):
            continue
        if (less_s := more / rate - transfer_s(more, taker, giver)) > saved_s:
            best, saved_s = giver, less_s
    return best
