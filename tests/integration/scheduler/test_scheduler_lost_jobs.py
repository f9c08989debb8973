"""The work queue has lost jobs that it had acknowledged; gateways still read their streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from harness.scheduler_stage import Stage

from inferflux.common.contract import subjects
from inferflux.v1 import scheduler_pb2


@asynccontextmanager
async def read(stage: Stage, *request_ids: str) -> AsyncIterator[None]:
    """A gateway that reports readers of these."""
    notice = scheduler_pb2.ReaderNotice(gateway_id="g1")
    for name in request_ids:
        notice.now.requests.add(tenant=stage.tenant, request_id=name, attempt_id=name)

    async def report() -> None:
        while True:
            await stage.bus.publish(subjects.SCHEDULER_READERS, notice.SerializeToString())
            await asyncio.sleep(0.5)

    reporting = asyncio.create_task(report())
    try:
        yield
    finally:
        reporting.cancel()


async def test_readers_of_lost_jobs_are_told_and_what_is_there_goes_on(own_stage: Stage) -> None:
    stage = own_stage
    worker = await stage.add_worker("w1", slots=1)
    for name in ("running", "waiting", "kept"):
        await stage.submit(name, attempt=name)
    await worker.has("running")
    await worker.emit("running", 2)
    await stage.status(lambda s: s.queued == 2 and s.running == 1)
    async with read(stage, "running", "waiting", "kept"):
        stage.kill_scheduler()
        # All but the last are lost.
        sequence = (await stage.bus._link.api(f"STREAM.INFO.{subjects.JOBS_STREAM}"))["state"]["last_seq"]
        await stage.bus._link.api(f"STREAM.PURGE.{subjects.JOBS_STREAM}", {"seq": sequence})
        await stage.start_scheduler()
        waiting = await stage.read("waiting", timeout_s=60)
        running = await stage.read("running", timeout_s=60)
        assert (waiting.outcome, waiting.token_ids) == ("JOB_LOST", [])
        assert (running.outcome, running.token_ids) == ("JOB_LOST", [0, 1])
        await worker.has("kept", timeout_s=60)  # once the worker was told to drop what runs without a job
        await worker.emit("kept", 1, is_last=True)
        assert (await stage.read("kept")).outcome == "stop"
    await stage.is_quiet(workers=1)
