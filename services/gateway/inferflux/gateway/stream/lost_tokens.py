"""Asking workers for tokens that were lost on their way."""

from __future__ import annotations

import contextlib

from inferflux.common.bus import Bus
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import Unavailable
from inferflux.v1 import tokens_pb2


async def want_again(bus: Bus, tenant: str, request_id: str, offset: int) -> None:
    """Have whichever worker keeps a request's chunks publish those from this token on again."""
    notice = tokens_pb2.TokensWanted(tenant=tenant, request_id=request_id, offset=offset)
    with contextlib.suppress(Unavailable):  # who wants them asks again
        await bus.publish(subjects.wanted(tenant, request_id), notice.SerializeToString())
