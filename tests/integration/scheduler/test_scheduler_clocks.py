"""Jobs of gateways whose clocks are minutes from the scheduler's."""

from __future__ import annotations

import time

import pytest
from harness.scheduler_stage import Stage

AHEAD_S = [-600.0, 600.0]


@pytest.mark.parametrize("ahead_s", AHEAD_S)
async def test_a_job_with_time_left_runs_and_its_worker_learns_how_much(stage: Stage, ahead_s: float) -> None:
    worker = await stage.add_worker("w1")
    await stage.submit("r", deadline_in_s=60, clock_ahead_s=ahead_s)
    request = (await worker.has("r")).request
    now_ms = time.time() * 1000
    assert 0 < request.deadline_unix_ms - now_ms <= 60_000
    assert now_ms - 60_000 < request.enqueued_unix_ms <= now_ms
    await worker.emit("r", 2, is_last=True)
    assert (await stage.read("r")).outcome == "stop"


@pytest.mark.parametrize("ahead_s", AHEAD_S)
async def test_a_job_whose_time_is_up_ends(stage: Stage, ahead_s: float) -> None:
    await stage.submit("late", deadline_in_s=1.0, clock_ahead_s=ahead_s)
    assert (await stage.read("late")).outcome == "EXPIRED_IN_QUEUE"


@pytest.mark.parametrize("ahead_s", AHEAD_S)
async def test_time_goes_on_while_no_scheduler_leads(own_stage: Stage, ahead_s: float) -> None:
    """A job lies in the queue meanwhile: what it had left when it was queued is not what it has left."""
    own_stage.kill_scheduler()
    await own_stage.submit("short", deadline_in_s=0.5, clock_ahead_s=ahead_s)
    await own_stage.submit("long", deadline_in_s=60, clock_ahead_s=ahead_s)
    worker = await own_stage.add_worker("w1")
    await own_stage.start_scheduler()
    request = (await worker.has("long")).request
    assert 0 < request.deadline_unix_ms - time.time() * 1000 <= 60_000
    assert (await own_stage.read("short")).outcome == "EXPIRED_IN_QUEUE"
    assert "short" not in worker.items
    await worker.emit("long", 2, is_last=True)
    assert (await own_stage.read("long")).outcome == "stop"
