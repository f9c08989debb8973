"""Reading the replay buffer: what a request's readers have been given so far."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from inferflux.common.bus import Bus
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InferFluxError, InvalidArgument
from inferflux.common.contract.messages.chunks import parse_chunk
from inferflux.common.process import logs
from inferflux.common.process.bad_messages import LogThrottle
from inferflux.scheduler.core.types import outcomes
from inferflux.scheduler.core.types.jobs import Attempt, RequestKey
from inferflux.scheduler.core.types.replayed import ReplayedTokens, assemble
from inferflux.v1 import tokens_pb2

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


async def end_lost(
    bus: Bus, attempt: Attempt, has_all: Callable[[], Awaitable[bool]], is_lost: Callable[[], bool]
) -> bool:
    """End a request that is read and has no job; whether that was done.

    Args:
        has_all: whether the work queue has no more jobs to give.
        is_lost: whether there is still no job.
    """
    try:
        if not await has_all():
            return False
        replayed = assemble(decode(await bus.replay(subjects.tokens(*attempt.key))))
        if replayed.outcome or not is_lost():
            return False
        chunk = outcomes.lost(attempt, replayed)
        await bus.publish(subjects.tokens(*attempt.key), chunk.SerializeToString())
    except InferFluxError as error:
        log.debug("could not look for a lost job", reason=error.reason)
        return False
    log.error("the work queue has lost a job", **logs.of_request(attempt.key.request_id, attempt.key.tenant))
    return True


async def read_replayed(bus: Bus, key: RequestKey) -> ReplayedTokens:
    """Read a request's chunks, trying for as long as JetStream does not answer."""
    while True:
        try:
            return assemble(decode(await bus.replay(subjects.tokens(key.tenant, key.request_id))))
        except InferFluxError as error:
            log.debug("replay failed, trying again", reason=error.reason)
            await asyncio.sleep(_RETRY_WAIT_S)
