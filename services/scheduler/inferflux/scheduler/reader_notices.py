"""Notices of gateways about who reads what, into the core; a gateway that asks is answered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from google.protobuf.message import DecodeError

from inferflux.common import subjects
from inferflux.common.bus import Bus, Message, Subscription
from inferflux.common.errors import InvalidArgument, Unavailable
from inferflux.v1 import scheduler_pb2

from .core.checks import check_readers
from .core.jobs import Attempt, Job, RequestKey
from .metrics import SchedulerMetrics


class ReaderSink(Protocol):
    def on_readers(self, gateway_id: str, read: Iterable[Attempt]) -> None: ...
    def on_reader_joined(self, gateway_id: str, attempt: Attempt) -> Job | None: ...
    def on_reader_left(
        self, gateway_id: str, attempt: Attempt, *, is_handed_over: bool
    ) -> tuple[bool, bool]: ...


async def serve_readers(
    bus: Bus, sink: ReaderSink, metrics: SchedulerMetrics, *, is_alone: bool
) -> Subscription:
    """Have notices handled until the subscription is closed.

    Args:
        is_alone: nobody else schedules other models, so that what is unknown here is known nowhere.
    """

    async def on_notice(message: Message) -> None:
        try:
            notice = scheduler_pb2.ReaderNotice.FromString(message.data)
            check_readers(notice)
        except (DecodeError, InvalidArgument) as error:
            metrics.bad.note("readers", error, subject=message.subject)
            return
        try:
            reply = _tell(sink, notice)
        except Unavailable:
            if is_alone:  # otherwise another scheduler answers
                raise
            return
        if notice.WhichOneof("notice") != "now" and (reply.was_found or is_alone):
            await message.respond(reply.SerializeToString())

    return await bus.serve(subjects.SCHEDULER_READERS, on_notice)


def _tell(sink: ReaderSink, notice: scheduler_pb2.ReaderNotice) -> scheduler_pb2.ReaderReply:
    """Pass a notice on; what is known of its request, where it is about one.

    Raises:
        Unavailable: the core does not answer.
    """
    reply = scheduler_pb2.ReaderReply()
    match notice.WhichOneof("notice"):
        case "now":
            sink.on_readers(notice.gateway_id, (_attempt(read) for read in notice.now.requests))
        case "joined":
            job = sink.on_reader_joined(notice.gateway_id, _attempt(notice.joined.request))
            if job is not None:
                reply.was_found = True
                reply.attempt_id = job.attempt_id
                reply.resume_window_s = job.request.resume_window_s
        case "left":
            attempt = _attempt(notice.left.request)
            reply.was_found, reply.may_cancel = sink.on_reader_left(
                notice.gateway_id, attempt, is_handed_over=notice.left.is_handed_over
            )
    return reply


def _attempt(read: scheduler_pb2.ReadRequest) -> Attempt:
    return Attempt(RequestKey(read.tenant, read.request_id), read.attempt_id)
