"""Cancel notices: workers receive the same ones; the scheduler ends waiting requests, and answers."""

from __future__ import annotations

from inferflux.common.bus import Bus, Message, Subscription
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InvalidArgument, Unavailable
from inferflux.common.contract.messages.notices import parse_cancel
from inferflux.common.contract.partitions import Partition
from inferflux.scheduler.core.types.jobs import Attempt, RequestKey
from inferflux.scheduler.metrics import SchedulerMetrics
from inferflux.v1 import scheduler_pb2

from .guard import GuardedCore


async def serve_cancels(
    bus: Bus, guard: GuardedCore, metrics: SchedulerMetrics, *, partition: Partition
) -> Subscription:
    """Have cancel notices handled until the subscription is closed.

    Args:
        partition: whose requests are known here. The leaders of all answer.
    """

    async def on_notice(message: Message) -> None:
        try:
            notice = parse_cancel(message.data, message.subject)
        except InvalidArgument as error:
            metrics.bad.note("cancel", error, subject=message.subject)
            return
        attempt = Attempt(RequestKey(notice.tenant, notice.request_id), notice.attempt_id)
        try:
            was_found, todo = guard.ask(
                "a cancel notice", lambda core, now: core.cancels.on_cancel(attempt, now)
            )
        except Unavailable:
            if partition.is_whole:  # otherwise another scheduler may have it, and this one is missed
                raise
            return
        guard.decide("a cancel notice", lambda _core, _now: todo)
        reply = scheduler_pb2.CancelReply(was_found=was_found, partition=partition.name)
        await message.respond(reply.SerializeToString())

    return await bus.serve(subjects.CANCEL_ALL, on_notice)


def notice(key: RequestKey, attempt_id: str) -> tuple[str, bytes]:
    """Subject and payload of a cancel notice."""
    message = scheduler_pb2.CancelNotice(tenant=key.tenant, request_id=key.request_id, attempt_id=attempt_id)
    return subjects.cancel(key.tenant, key.request_id), message.SerializeToString()
