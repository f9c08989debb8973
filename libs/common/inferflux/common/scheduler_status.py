"""What schedulers say of themselves: one, or the leader of each partition of the models."""

from __future__ import annotations

from collections.abc import Sequence

from inferflux.common import checks, partitions, subjects
from inferflux.common.bus import Bus
from inferflux.common.errors import InvalidArgument, Unavailable
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
    found: dict[partitions.Partition, scheduler_pb2.SchedulerStatus] = {}

    def is_last(data: bytes) -> bool:
        try:
            status = checks.decode(scheduler_pb2.SchedulerStatus, data)
            partition = partitions.parse(status.partition)
        except InvalidArgument:
            return False
        found[partition] = status
        return len(found) >= partition.count

    question = scheduler_pb2.SchedulerStatusRequest(without_workers=without_workers)
    await bus.request_many(
        subjects.SCHEDULER_STATUS, question.SerializeToString(), timeout_s=timeout_s, is_last=is_last
    )
    if not found:
        raise Unavailable("it answered something else", reason="BAD_ANSWER")
    return [found[partition] for partition in sorted(found)]


def missing(statuses: Sequence[scheduler_pb2.SchedulerStatus]) -> list[str]:
    """The partitions whose leader has not answered, by name."""
    found = {partitions.parse(status.partition) for status in statuses}
    count = max((partition.count for partition in found), default=1)
    return [each.name for each in partitions.divide(count) if each not in found]


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
