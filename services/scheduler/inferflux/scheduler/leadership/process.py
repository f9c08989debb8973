"""Parts that all partitions of a scheduler process have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inferflux.common.bus import Bus
from inferflux.common.tracing import Tracer
from inferflux.scheduler.metrics import SchedulerMetrics
from inferflux.scheduler.settings import SchedulerSettings

if TYPE_CHECKING:
    from redis.asyncio import Redis

# How often deadlines and timeouts are checked.
TICK_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class Process:
    """Settings, connections and instruments that the partitions of a process share.

    Attributes:
        clock: seconds since the Unix epoch that never jump.
        not_ready: what keeps the process from being ready, "" if nothing does.
    """

    settings: SchedulerSettings
    bus: Bus
    redis: Redis
    metrics: SchedulerMetrics
    tracer: Tracer
    clock: Callable[[], float]
    not_ready: Callable[[], str]
