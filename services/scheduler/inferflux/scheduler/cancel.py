"""Cancel notices: workers hear the same ones; the scheduler ends what waits, and answers."""

from __future__ import annotations

from typing import Protocol

from inferflux.common import subjects
from inferflux.common.bus import Bus, Message, Subscription
from inferflux.common.cancel_notices import parse_cancel
from inferflux.common.errors import InvalidArgument, Unavailable
from inferflux.v1 import scheduler_pb2

from .core.jobs import Attempt, RequestKey
from .metrics import SchedulerMetrics


class CancelSink(Protocol):
    def on_cancel(self, attempt: Attempt) -> bool:
        """Whether there is such an attempt. Raises Unavailable when the core does not answer."""


async def serve_cancels(
    bus: Bus, sink: CancelSink, metrics: SchedulerMetrics, *, is_alone: bool
) -> Subscription:
    """Have cancel notices handled until the subscription is closed.

    Args:
        is_alone: nobody else schedules other models, so that what is unknown here is known nowhere.
    """

    async def on_notice(message: Message) -> None:
        try:
            notice = parse_cancel(message.data, message.subject)
        except InvalidArgument as error:
            metrics.bad.note("cancel", error, subject=message.subject)
            return
        key = RequestKey(notice.tenant, notice.request_id)
        try:
            was_found = sink.on_cancel(Attempt(key, notice.attempt_id))
        except Unavailable:
            if is_alone:  # otherwise another scheduler answers
                raise
            return
        if was_found or is_alone:
            await message.respond(scheduler_pb2.CancelReply(was_found=was_found).SerializeToString())

    return await bus.serve(subjects.CANCEL_ALL, on_notice)


def notice(key: RequestKey, attempt_id: str) -> tuple[str, bytes]:
    """Subject and payload of a cancel notice."""
    message = scheduler_pb2.CancelNotice(tenant=key.tenant, request_id=key.request_id, attempt_id=attempt_id)
    return subjects.cancel(key.tenant, key.request_id), message.SerializeToString()
