"""Status of the schedulers: one, or the leader of each partition of the models."""

from __future__ import annotations

from collections.abc import Sequence

from inferflux.common.contract import partitions, subjects
from inferflux.common.contract.requests.worker_roles import PARTIAL
from inferflux.v1 import scheduler_pb2

from . import Bus, leaders
from .leaders import ask_leaders


async def ask_schedulers(
    bus: Bus,
    *,
    timeout_s: float,
    without_workers: bool = False,
    page_size: int = 0,
    after_worker_id: str = "",
) -> list[scheduler_pb2.SchedulerStatus]:
    """Status of each partition's leader, in the order of partitions; those that did not answer in time
    are missing. The first answer tells how many there are.

    Args:
        page_size: each answers with at most this many workers, in the order of their ids; 0: with all. A
            scheduler that knows no pages answers with all.
        after_worker_id: and only with those whose ids come after this one.

    Raises:
        DeadlineExceeded: none came within `timeout_s`.
        Unavailable: nothing listens, or NATS is away; with reason BAD_ANSWER, no answer could be read.
    """
    question = scheduler_pb2.SchedulerStatusRequest(
        without_workers=without_workers, page_size=page_size, after_worker_id=after_worker_id
    )
    kind = scheduler_pb2.SchedulerStatus
    answers = await ask_leaders(bus, subjects.SCHEDULER_STATUS, question, kind, timeout_s=timeout_s)
    return list(answers.values())


def missing(statuses: Sequence[scheduler_pb2.SchedulerStatus]) -> list[str]:
    """The partitions whose leader has not answered, by name."""
    return leaders.missing({partitions.parse(status.partition) for status in statuses})


def together(statuses: Sequence[scheduler_pb2.SchedulerStatus]) -> scheduler_pb2.SchedulerStatus:
    """All partitions as one: what is counted is added up, the rest is that of the first."""
    whole = scheduler_pb2.SchedulerStatus()
    whole.CopyFrom(statuses[0])
    whole.worker_totals.CopyFrom(totals_of(whole))
    for other in statuses[1:]:
        _add(whole.worker_totals, totals_of(other))
        whole.workers.extend(other.workers)
        whole.queued += other.queued
        whole.running += other.running
        whole.parked += other.parked
        whole.oldest_wait_ms = max(whole.oldest_wait_ms, other.oldest_wait_ms)
        whole.moving += other.moving
        whole.not_ready = whole.not_ready or other.not_ready
        for pool in other.pools:
            _add_pool(whole, pool)
    if absent := missing(statuses):
        whole.not_ready = whole.not_ready or f"no leader answers for {', '.join(absent)}"
    return whole


def small_pools(status: scheduler_pb2.SchedulerStatus) -> dict[str, str]:
    """Pools of workers that are smaller than they should be: for each `decode pool not ready`, and how many
    of its workers are."""
    return {
        f"{PARTIAL[pool.role]} pool not ready": f"{pool.ready} of {pool.expected} workers"
        for pool in status.pools
        if pool.role in PARTIAL and pool.ready < pool.expected
    }


def _add_pool(whole: scheduler_pb2.SchedulerStatus, added: scheduler_pb2.PoolStatus) -> None:
    """Workers of all partitions together should be as many as each leader is told."""
    for pool in whole.pools:
        if pool.role == added.role:
            pool.ready += added.ready
            pool.expected = max(pool.expected, added.expected)
            return
    whole.pools.append(added)


def totals_of(status: scheduler_pb2.SchedulerStatus) -> scheduler_pb2.WorkerTotals:
    """Totals of all workers of a scheduler: a scheduler that does not count them answers with all of them."""
    if status.HasField("worker_totals"):
        return status.worker_totals
    totals = scheduler_pb2.WorkerTotals()
    for view in status.workers:
        state = view.status.state
        one = scheduler_pb2.WorkerTotals(
            workers=1,
            loading=int(state == scheduler_pb2.WORKER_STATE_LOADING),
            ready=int(state == scheduler_pb2.WORKER_STATE_READY),
            draining=int(state == scheduler_pb2.WORKER_STATE_DRAINING),
            slots=view.status.slots,
        )
        _add(totals, one)
    return totals


def _add(totals: scheduler_pb2.WorkerTotals, other: scheduler_pb2.WorkerTotals) -> None:
    for field, count in other.ListFields():
        setattr(totals, field.name, getattr(totals, field.name) + count)
