"""The scheduler as processes of their own, on a nats-server of their own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from harness.scheduler_stage import Stage

from inferflux.common.bus import Bus, StreamLimits
from inferflux.common.servers import ServerProcess


@pytest.fixture
async def theatre(private_nats: ServerProcess) -> AsyncIterator[Stage]:
    """A stage on which no scheduler has come yet."""
    bus = await Bus.connect(private_nats.url, name="stage")
    await bus.ensure_streams(StreamLimits(queue_limit=256))
    env = os.environ | {
        "INFERFLUX_NATS_URL": private_nats.url,
        "INFERFLUX_EXIT_WITH_PARENT": "true",
        "INFERFLUX_QUEUE_LIMIT": "256",
    }
    stage = Stage(private_nats, bus, env)
    yield stage
    for standby in stage.standbys.values():
        standby.end()
    for worker in stage.workers:
        await worker.vanish()
    await bus.close()


@pytest.fixture
async def stage(theatre: Stage) -> AsyncIterator[Stage]:
    """One scheduler, which ends in order."""
    theatre.env["INFERFLUX_SCHEDULER_NO_WORKER_TIMEOUT_S"] = "4"
    await theatre.start_scheduler()
    yield theatre
    if theatre.process is not None and theatre.process.poll() is None:
        theatre.process.terminate()
        assert theatre.process.wait(10) == 0
