"""Notices of gateways about who reads what, into the core; a gateway that asks is answered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from google.protobuf.message import DecodeError

from inferflux.common import subjects
from inferflux.common.bus import Bus, Message, Subscription
from inferflux.common.errors import InvalidArgument
from inferflux.v1 import scheduler_pb2

from .jobs import Attempt, Job, RequestKey
from .metrics import SchedulerMetrics

# Requests in one heartbeat; gateways divide theirs.
_MOST_REQUESTS = 10_000


class ReaderSink(Protocol):
    def on_readers(self, gateway_id: str, read: Iterable[Attempt]) -> None: ...
    def on_reader_joined(self, gateway_id: str, attempt: Attempt) -> Job | None: ...
    def on_reader_left(
        self, gateway_id: str, attempt: Attempt, *, is_handed_over: bool
    ) -> tuple[bool, bool]: ...


def parse(data: bytes) -> scheduler_pb2.ReaderNotice:
    """Decode a notice. Names in it need no check: what names no job here is passed over.

    Raises:
        InvalidArgument: it cannot be decoded, its gateway has no name, or it lists too much.
    """
    try:
        notice = scheduler_pb2.ReaderNotice.FromString(data)
    except DecodeError as error:
        raise InvalidArgument(f"not a ReaderNotice: {error}", reason="UNDECODABLE") from None
    if not subjects.is_safe_token(notice.gateway_id):
        raise InvalidArgument("gateway_id is missing or has characters it may not have", field="gateway_id")
    if len(notice.now.requests) > _MOST_REQUESTS:
        message = f"{len(notice.now.requests)} requests; at most {_MOST_REQUESTS} are taken"
        raise InvalidArgument(message, field="now.requests")
    return notice


async def serve_readers(
    bus: Bus, sink: ReaderSink, metrics: SchedulerMetrics, *, is_alone: bool
) -> Subscription:
    """Have notices handled until the subscription is closed.

    Args:
        is_alone: nobody else schedules other models, so that what is unknown here is known nowhere.
    """

    async def on_notice(message: Message) -> None:
        try:
            notice = parse(message.data)
        except InvalidArgument as error:
            metrics.bad.note("readers", error, subject=message.subject)
            return
        reply = scheduler_pb2.ReaderReply()
        match notice.WhichOneof("notice"):
            case "now":
                sink.on_readers(notice.gateway_id, (_attempt(read) for read in notice.now.requests))
                return
            case "joined":
                attempt = _attempt(notice.joined.request)
                job = sink.on_reader_joined(notice.gateway_id, attempt)
                if job is not None:
                    reply.was_found = True
                    reply.attempt_id = job.attempt_id
                    reply.resume_window_s = job.request.resume_window_s
            case "left":
                attempt = _attempt(notice.left.request)
                reply.was_found, reply.may_end = sink.on_reader_left(
                    notice.gateway_id, attempt, is_handed_over=notice.left.is_handed_over
                )
            case _:
                metrics.bad.note("readers", "no notice that is known here", subject=message.subject)
                return
        if reply.was_found or is_alone:
            await message.respond(reply.SerializeToString())

    return await bus.serve(subjects.SCHEDULER_READERS, on_notice)


def _attempt(read: scheduler_pb2.ReadRequest) -> Attempt:
    return Attempt(RequestKey(read.tenant, read.request_id), read.attempt_id)
