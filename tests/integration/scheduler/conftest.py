"""The scheduler as a process of its own, on a nats-server of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from harness.scheduler_stage import Stage

from inferflux.common.bus import Bus, StreamLimits
from inferflux.common.servers import ServerProcess


@pytest.fixture
async def stage(private_nats: ServerProcess) -> AsyncIterator[Stage]:
    bus = await Bus.connect(private_nats.url, name="stage")
    await bus.ensure_streams(StreamLimits(queue_limit=256))
    env = os.environ | {
        "INFERFLUX_NATS_URL": private_nats.url,
        "INFERFLUX_EXIT_WITH_PARENT": "true",
        "INFERFLUX_QUEUE_LIMIT": "256",
        "INFERFLUX_SCHEDULER_NO_WORKER_TIMEOUT_S": "4",
    }
    stage = Stage(private_nats, bus, env)
    await stage.start_scheduler()
    yield stage
    for worker in stage.workers:
        await worker.vanish()
    if stage.process is not None and stage.process.poll() is None:
        stage.process.terminate()
        assert stage.process.wait(10) == 0
    await bus.close()
