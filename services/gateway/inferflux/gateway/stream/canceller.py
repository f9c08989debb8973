"""Cancelling: a notice to the scheduler, which replies, and to the workers, which do not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from inferflux.common.bus import Bus
from inferflux.common.bus.leaders import ask_who_has
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import DeadlineExceeded, InferFluxError, NotFound, Unavailable
from inferflux.common.process import logs
from inferflux.common.process.tasks import Background
from inferflux.v1 import scheduler_pb2

log = logs.get()

# Seconds between notices for a job that may have been on its way to the scheduler when the first one passed.
_FOLLOW_UPS_S = (0.1, 0.4, 1.5)


class Canceller:
    """Cancels requests by NATS."""

    def __init__(self, bus: Bus, background: Background, *, timeout_s: float) -> None:
        self._bus = bus
        self._background = background
        self._timeout_s = timeout_s

    async def cancel(self, tenant: str, request_id: str) -> None:
        """Cancel the present attempt of a request and have it confirmed.

        Raises:
            NotFound: it is neither queued nor running.
            Unavailable: the scheduler does not answer; a worker that runs it has been told all the same.
        """
        try:
            was_found = await self._ask(scheduler_pb2.CancelNotice(tenant=tenant, request_id=request_id))
        except (DeadlineExceeded, Unavailable):
            message = "the scheduler does not answer; the worker has been told to stop"
            raise Unavailable(message, reason="CANCEL_UNCONFIRMED") from None
        if not was_found:
            message = f"no request {request_id} is queued or running"
            raise NotFound(message, reason="UNKNOWN_REQUEST")

    async def abandon(self, read: scheduler_pb2.ReadRequest, *, may_be_underway: bool) -> None:
        """Cancel one attempt of a request that has no reader any more; returns when the notice is sent.

        Args:
            may_be_underway: the scheduler may not have the job yet: tell it again until it has.
        """
        tenant, request_id = read.tenant, read.request_id
        notice = scheduler_pb2.CancelNotice(tenant=tenant, request_id=request_id, attempt_id=read.attempt_id)
        try:
            await self._bus.publish(subjects.cancel(tenant, request_id), notice.SerializeToString())
        except Unavailable as error:
            log.warning(
                "a cancel notice was not sent", request_id=request_id, tenant=tenant, why=error.message
            )
        if may_be_underway:
            self._background.start(self._follow_up(notice, _FOLLOW_UPS_S))

    async def _follow_up(self, notice: scheduler_pb2.CancelNotice, delays_s: Sequence[float]) -> None:
        for delay_s in delays_s:
            await asyncio.sleep(delay_s)
            try:
                if await self._ask(notice):
                    return
            except InferFluxError as error:
                why = error.reason
                log.debug("a cancel notice was not answered", request_id=notice.request_id, reason=why)

    async def _ask(self, notice: scheduler_pb2.CancelNotice) -> bool:
        subject = subjects.cancel(notice.tenant, notice.request_id)
        kind = scheduler_pb2.CancelReply
        reply = await ask_who_has(
            self._bus, subject, notice, kind, timeout_s=self._timeout_s, is_found=lambda r: r.was_found
        )
        return reply.was_found
