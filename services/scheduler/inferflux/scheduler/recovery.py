"""Reading the replay buffer: what a request's readers have been given so far."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from inferflux.common import logs, subjects
from inferflux.common.bad_messages import LogThrottle
from inferflux.common.bus import Bus
from inferflux.common.chunks import parse_chunk
from inferflux.common.errors import InferFluxError, InvalidArgument
from inferflux.v1 import tokens_pb2

from .core.jobs import RequestKey
from .core.replayed import ReplayedTokens, assemble

log = logs.get("scheduler.recovery")
_throttle = LogThrottle()

_RETRY_WAIT_S = 0.2


def decode(payloads: Iterable[bytes]) -> list[tokens_pb2.TokenChunk]:
    """Parse chunks. Payloads that are none are skipped: anyone who may publish could have put them there."""
    chunks = []
    for payload in payloads:
        try:
            chunks.append(parse_chunk(payload))
        except InvalidArgument as error:
            unlogged = _throttle.unlogged("chunk")
            if unlogged is not None:
                about = {"why": error.message, "size": len(payload), "unlogged": unlogged}
                log.warning("a chunk in the replay buffer was ignored", **about)
    return chunks


async def read_replayed(bus: Bus, key: RequestKey) -> ReplayedTokens:
    """Read a request's chunks, trying for as long as JetStream does not answer."""
    while True:
        try:
            return assemble(decode(await bus.replay(subjects.tokens(key.tenant, key.request_id))))
        except InferFluxError as error:
            log.debug("replay failed, trying again", reason=error.reason)
            await asyncio.sleep(_RETRY_WAIT_S)
