"""The scheduler as processes of their own, on a nats-server of their own."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
from harness.scheduler_stage import Stage
from harness.servers import ServerProcess

from inferflux.common.bus import Bus, StreamLimits


@pytest.fixture
async def theatre(private_nats: ServerProcess) -> AsyncIterator[Stage]:
    """A stage on which no scheduler has come yet."""
    stage = await _empty_stage(private_nats)
    yield stage
    for standby in stage.standbys.values():
        standby.end()
    for worker in stage.workers:
        await worker.vanish()
    await stage.bus.close()


@pytest.fixture
async def own_stage(theatre: Stage) -> AsyncIterator[Stage]:
    """A scheduler of the test's own, which ends in order."""
    await _start_scheduler(theatre)
    yield theatre
    _end_in_order(theatre)


@pytest.fixture(scope="session")
def shared_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess.nats(tmp_path_factory.mktemp("scheduler-nats"))
    server.start()
    server.wait_ready()
    yield server
    server.stop()


@pytest.fixture(scope="session")
async def one_scheduler(shared_nats: ServerProcess) -> AsyncIterator[Stage]:
    """A scheduler for the whole session."""
    stage = await _empty_stage(shared_nats)
    await _start_scheduler(stage)
    yield stage
    _end_in_order(stage)
    await stage.bus.close()


@pytest.fixture
async def stage(one_scheduler: Stage) -> AsyncIterator[Stage]:
    """The session's scheduler, for a test that leaves it running. Tenant and workers are the test's own."""
    own = replace(one_scheduler, tenant=f"tenant-{uuid.uuid4().hex[:12]}", workers=[], standbys={})
    yield own
    await own.dismiss_workers()


async def _empty_stage(nats: ServerProcess) -> Stage:
    bus = await Bus.connect(nats.url, name="stage")
    await bus.ensure_streams(StreamLimits(queue_limit=256))
    env = os.environ | {
        "INFERFLUX_NATS_URL": nats.url,
        "INFERFLUX_EXIT_WITH_PARENT": "true",
        "INFERFLUX_QUEUE_LIMIT": "256",
        # A scripted worker gives no slot up.
        "INFERFLUX_FAIRNESS_PREEMPT": "false",
    }
    return Stage(nats, bus, env)


async def _start_scheduler(stage: Stage) -> None:
    stage.env["INFERFLUX_SCHEDULER_NO_WORKER_TIMEOUT_S"] = "4"
    await stage.start_scheduler()


def _end_in_order(stage: Stage) -> None:
    if stage.process is not None and stage.process.poll() is None:
        stage.process.terminate()
        assert stage.process.wait(10) == 0
