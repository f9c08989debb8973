"""What schedulers say of themselves: one, or the leader of each partition of the models."""

from __future__ import annotations

from collections.abc import Sequence

from inferflux.common import leaders, partitions, subjects
from inferflux.common.bus import Bus
from inferflux.common.leaders import ask_leaders
from inferflux.v1 import scheduler_pb2


async def ask_schedulers(
    bus: Bus, *, timeout_s: float, without_workers: bool = False
) -> list[scheduler_pb2.SchedulerStatus]:
    """What the leader of each partition says, in the order of partitions; those that did not answer in time
    are missing. The first answer tells how many there are.

    Raises:
        DeadlineExceeded: none came within `timeout_s`.
        Unavailable: nothing listens, or NATS is away; with reason BAD_ANSWER, no answer could be read.
    """
    question = scheduler_pb2.SchedulerStatusRequest(without_workers=without_workers)
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
    for other in statuses[1:]:
        whole.workers.extend(other.workers)
        whole.queued += other.queued
        whole.running += other.running
        whole.parked += other.parked
        whole.oldest_wait_ms = max(whole.oldest_wait_ms, other.oldest_wait_ms)
        whole.not_ready = whole.not_ready or other.not_ready
    if absent := missing(statuses):
        whole.not_ready = whole.not_ready or f"no leader answers for {', '.join(absent)}"
    return whole
