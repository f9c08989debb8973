"""Requests to the leading schedulers: one, or one of each partition of the models."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from inferflux.common.contract import checks, partitions
from inferflux.common.contract.errors import DeadlineExceeded, InvalidArgument, Unavailable
from inferflux.common.contract.partitions import Partition
from inferflux.v1 import scheduler_pb2

from . import Bus

_Answer = TypeVar(
    "_Answer",
    scheduler_pb2.SchedulerStatus,
    scheduler_pb2.ReaderReply,
    scheduler_pb2.CancelReply,
    scheduler_pb2.SchedulerAdminReply,
)
_Question = (
    scheduler_pb2.SchedulerStatusRequest
    | scheduler_pb2.ReaderNotice
    | scheduler_pb2.CancelNotice
    | scheduler_pb2.SchedulerAdminRequest
)


async def ask_leaders(
    bus: Bus,
    subject: str,
    question: _Question,
    kind: type[_Answer],
    *,
    timeout_s: float,
    is_final: Callable[[_Answer], bool] = lambda _answer: False,
) -> dict[Partition, _Answer]:
    """Ask the leader of each partition; those that did not answer in time are missing.

    The first answer tells how many there are.

    Args:
        is_final: of an answer after which no other is waited for.

    Raises:
        DeadlineExceeded: none came within `timeout_s`.
        Unavailable: nothing listens, or NATS is away; with reason BAD_ANSWER, no answer could be read.
        InferFluxError: what a leader refused with, where none answered.
    """
    found: dict[Partition, _Answer] = {}

    def is_last(data: bytes) -> bool:
        try:
            answer = checks.decode(kind, data)
            partition = partitions.parse(answer.partition)
        except InvalidArgument:
            return False
        found[partition] = answer
        return is_final(answer) or len(found) >= partition.count

    await bus.request_many(subject, question.SerializeToString(), timeout_s=timeout_s, is_last=is_last)
    if not found:
        raise Unavailable("it answered something else", reason="BAD_ANSWER")
    return {partition: found[partition] for partition in sorted(found)}


async def ask_who_has(
    bus: Bus,
    subject: str,
    question: _Question,
    kind: type[_Answer],
    *,
    timeout_s: float,
    is_found: Callable[[_Answer], bool],
) -> _Answer:
    """Answer of the leader that has what is asked for; any answer where no leader has it.

    Raises:
        DeadlineExceeded: of those that answered within `timeout_s` none has it, and another one may.
        InferFluxError: as `ask_leaders`.
    """
    answers = await ask_leaders(bus, subject, question, kind, timeout_s=timeout_s, is_final=is_found)
    for answer in answers.values():
        if is_found(answer):
            return answer
    if absent := missing(answers):
        message = f"no leader answers on {subject} for {', '.join(absent)}"
        raise DeadlineExceeded(message, reason="BUS_TIMEOUT")
    return next(iter(answers.values()))


def missing(found: Collection[Partition]) -> list[str]:
    """The partitions whose leader has not answered, by name."""
    count = max((partition.count for partition in found), default=1)
    return [each.name for each in partitions.divide(count) if each not in found]
