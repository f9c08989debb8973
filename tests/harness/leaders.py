"""Which scheduler leads, as it says itself."""

from __future__ import annotations

from inferflux.common.bus import Bus
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InferFluxError
from inferflux.v1 import scheduler_pb2

_ANSWER_LIMIT_S = 0.5


async def leader_of(bus: Bus, limit_s: float = _ANSWER_LIMIT_S) -> str:
    """Its name; empty while none answers."""
    request = scheduler_pb2.SchedulerStatusRequest().SerializeToString()
    try:
        reply = await bus.request(subjects.SCHEDULER_STATUS, request, timeout_s=limit_s)
    except InferFluxError:
        return ""
    return scheduler_pb2.SchedulerStatus.FromString(reply).leader
