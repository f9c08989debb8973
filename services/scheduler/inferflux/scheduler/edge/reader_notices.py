"""Notices of gateways about who reads what, into the core; a gateway that asks is answered."""

from __future__ import annotations

from inferflux.common.bus import Bus, Message, Subscription
from inferflux.common.contract import checks, subjects
from inferflux.common.contract.errors import InvalidArgument, Unavailable
from inferflux.common.contract.partitions import Partition
from inferflux.scheduler.core.lifecycle.checks import check_readers
from inferflux.scheduler.core.scheduler import SchedulerCore
from inferflux.scheduler.core.types.jobs import Attempt, RequestKey
from inferflux.scheduler.metrics import SchedulerMetrics
from inferflux.v1 import scheduler_pb2

from .guard import GuardedCore


async def serve_readers(
    bus: Bus, guard: GuardedCore, metrics: SchedulerMetrics, *, partition: Partition
) -> Subscription:
    """Have notices handled until the subscription is closed.

    Args:
        partition: whose requests are known here. The leaders of all answer.
    """

    async def on_notice(message: Message) -> None:
        try:
            notice = checks.decode(scheduler_pb2.ReaderNotice, message.data)
            check_readers(notice)
        except InvalidArgument as error:
            metrics.bad.note("readers", error, subject=message.subject)
            return
        try:
            reply = guard.ask("a reader notice", lambda core, now: _tell(core, notice, now))
        except Unavailable:
            if partition.is_whole:  # otherwise another scheduler may have it, and this one is missed
                raise
            return
        reply.partition = partition.name
        if notice.WhichOneof("notice") != "now":
            await message.respond(reply.SerializeToString())

    return await bus.serve(subjects.SCHEDULER_READERS, on_notice)


def _tell(core: SchedulerCore, notice: scheduler_pb2.ReaderNotice, now: float) -> scheduler_pb2.ReaderReply:
    """Pass a notice on; what is known of its request, where it is about one."""
    reply = scheduler_pb2.ReaderReply()
    match notice.WhichOneof("notice"):
        case "now":
            core.cancels.on_readers(notice.gateway_id, map(_attempt, notice.now.requests), now)
        case "joined":
            job = core.cancels.on_reader_joined(notice.gateway_id, _attempt(notice.joined.request), now)
            if job is not None:
                reply.was_found = True
                reply.attempt_id = job.attempt_id
                reply.resume_window_s = job.request.resume_window_s
                reply.model = job.model
                reply.has_answer_format = job.request.HasField("answer_format")
        case "left":
            attempt = _attempt(notice.left.request)
            reply.was_found, reply.may_cancel = core.cancels.on_reader_left(
                notice.gateway_id, attempt, now, is_handed_over=notice.left.is_handed_over
            )
    return reply


def _attempt(read: scheduler_pb2.ReadRequest) -> Attempt:
    return Attempt(RequestKey(read.tenant, read.request_id), read.attempt_id)
