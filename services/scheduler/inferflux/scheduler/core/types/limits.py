"""The numbers the core decides by (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds."""

    # 0: as many as the worker has free slots.
    max_batch_size: int = 0
    max_batch_tokens: int = 8192
    max_retries: int = 5
    # Refusals by workers that had looked able to take it.
    max_refusals: int = 20
    # Deaths of engines that a request must have seen to be to blame, the last of them alone: see `suspects`.
    poison_deaths: int = 2
    # Suspects wait this long for an engine that starts again, before they take a worker from others.
    reserve_after_s: float = 5.0
    no_worker_timeout_s: float = 10.0
    # Requests wait this long for a model that has no room, before one that is in use makes room for it.
    model_wait_s: float = 5.0
    worker_dead_s: float = 3.0
    # A worker that is silent for this long is probed: NATS reports it when no process subscribes.
    probe_after_s: float = 1.3
    # Listening for heartbeats before the first dispatch.
    settle_s: float = 1.2
    # After a reconnect, what workers get to reconnect themselves before their silence counts.
    reconnect_grace_s: float = 3.0
    # A request that a worker has without a job in the queue is dropped after this; not while jobs of an
    # earlier scheduler come.
    unowned_grace_s: float = 10.0
    # A cancel notice that comes before its job is remembered this long.
    early_cancel_s: float = 10.0
    # A request outlives a gateway that stopped reporting a reader of it by this, or by its resume window if
    # that is longer; 0: for ever. A client finds another gateway and resumes within seconds.
    unread_limit_s: float = 30.0
    # A held job says so this often: JetStream delivers it again after three times as long without a word.
    hold_interval_s: float = 20.0
    # Heartbeats in a row that must lack an accepted request before it counts as lost.
    mismatch_threshold: int = 2
    # A running request that makes no progress for this long is requeued; 0: never.
    stuck_s: float = 120.0
    # What waits on a worker for longer than this goes on with another that has room.
    move_after_s: float = 2.0
    # The state of a request that moves is waited for no longer than this, nor what a drain hands over.
    move_limit_s: float = 10.0
    # A request waits for the worker that has its prefix no longer than this; 0: never. See `prefix_waits`.
    prefix_wait_s: float = 5.0
    # Prefill and decode workers that should be ready; 0: any number.
    prefill_pool_size: int = 0
    decode_pool_size: int = 0
    # New requests that may wait, in all and of one tenant; 0: as many as come, and as many as are left free.
    max_queued: int = 0
    max_queued_per_tenant: int = 0
    # Jobs that the work queue holds; 0: any number.
    queue_limit: int = 0
    # Ended jobs remembered, to acknowledge them again when an acknowledgement was lost.
    remembered_jobs: int = 16_384
