"""A queue of thousands of jobs is taken over by another scheduler."""

from __future__ import annotations

import asyncio
import signal

import pytest
from harness.scheduler_stage import Stage, Standby

from inferflux.common.bus import StreamLimits

_JOBS = 3000
_AT_ONCE = 250


@pytest.fixture
async def pair(theatre: Stage) -> tuple[Standby, Standby]:
    """The leader and its standby, of a queue that holds that many."""
    await theatre.bus.ensure_streams(StreamLimits(queue_limit=2 * _JOBS))
    theatre.env["INFERFLUX_QUEUE_LIMIT"] = str(2 * _JOBS)
    first = await theatre.add_scheduler("s0")
    await first.until_ready("leads in term")
    second = await theatre.add_scheduler("s1")
    await second.until_ready("standby: s0 leads")
    return first, second


async def _submit_all(stage: Stage, names: list[str]) -> None:
    for start in range(0, len(names), _AT_ONCE):
        async with asyncio.TaskGroup() as group:
            for name in names[start : start + _AT_ONCE]:
                group.create_task(stage.submit(name))


async def test_a_new_leader_goes_on_with_what_runs_and_keeps_the_order_of_thousands(
    theatre: Stage, pair: tuple[Standby, Standby]
) -> None:
    leader, _ = pair
    worker = await theatre.add_worker("w1", slots=1)
    await theatre.submit("running")
    await worker.has("running")
    names = [f"job-{n}" for n in range(_JOBS)]
    for name in names[:2]:
        await theatre.submit(name)
    await _submit_all(theatre, names[2:])
    # It runs although its job is behind all others in the work queue.
    await theatre.submit("last", priority=9)
    await theatre.status(lambda s: s.queued == _JOBS + 1)
    await worker.emit("running", 1, is_last=True)
    epoch = (await worker.has("last")).request.epoch
    await theatre.status(lambda s: s.queued == _JOBS and s.running == 1)

    leader.signal(signal.SIGKILL)
    await theatre.status(lambda s: s.leader == "s1" and s.queued == _JOBS and s.running == 1, timeout_s=60)
    assert worker.dropped == []
    assert worker.items["last"].request.epoch == epoch
    await worker.emit("last", 1, is_last=True)
    assert (await theatre.read("last")).token_ids == [0]
    for name in names[:2]:
        await worker.has(name)
        await worker.emit(name, 1, is_last=True)
        assert (await theatre.read(name)).token_ids == [0]
