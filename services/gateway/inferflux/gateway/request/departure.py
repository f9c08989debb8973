"""What follows when the last reader of a request on this gateway leaves before its end."""

from __future__ import annotations

import asyncio

from inferflux.gateway.stream.canceller import Canceller
from inferflux.gateway.stream.readers import Left, ReaderReports
from inferflux.v1 import scheduler_pb2

# After an outage of NATS: between two attempts to tell the scheduler, and how many there are. Beyond that the
# request is ended by the scheduler, because its reader is not reported.
_RETRY_S = 0.5
_RETRIES = 60


async def depart(
    reports: ReaderReports,
    canceller: Canceller,
    read: scheduler_pb2.ReadRequest,
    *,
    window_s: int | None,
    has_received: bool,
    is_handed_over: bool,
) -> None:
    """Say that the reader has left, and cancel the request if it has neither a window nor another reader.

    Where no scheduler leads, the workers are told at once: a request without a window does not wait for the
    next leader. After an outage of NATS the scheduler is waited for: meanwhile the request may have been
    resumed elsewhere.

    Args:
        window_s: of the request; None when it is not known.
        has_received: whether a chunk of it has come, so that its job has certainly reached the scheduler.
        is_handed_over: the gateway ended the stream; the client is told to resume it.
    """
    left = await _leave(reports, read, is_handed_over=is_handed_over)
    if is_handed_over or left in (Left.KEPT, Left.UNSENT):
        return
    is_ours_to_end = window_s == 0 and bool(read.attempt_id)
    if left is Left.MAY_CANCEL or is_ours_to_end:
        await canceller.abandon(read, may_be_underway=not has_received)


async def _leave(reports: ReaderReports, read: scheduler_pb2.ReadRequest, *, is_handed_over: bool) -> Left:
    left = await reports.leave(read, is_handed_over=is_handed_over)
    was_away = left is Left.UNSENT
    for _ in range(_RETRIES if was_away else 0):
        await asyncio.sleep(_RETRY_S)
        left = await reports.leave(read, is_handed_over=is_handed_over)
        if left not in (Left.UNSENT, Left.UNANSWERED):
            return left
    return Left.UNSENT if was_away else left
