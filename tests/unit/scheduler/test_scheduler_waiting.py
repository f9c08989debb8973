"""What a request that waits, or may not wait, is told."""

from __future__ import annotations

from harness.scheduler_requests import finish, make_world, state_of, submit
from harness.scheduler_world import make_request

from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.scheduler.core.types.jobs import JobState


def test_more_than_may_wait_are_refused_and_told_when_to_try_again() -> None:
    world = make_world(max_queued=3, max_queued_per_tenant=2)
    keys = [submit(world, f"r{i}") for i in range(3)]
    assert world.read(keys[2]).outcome == "TENANT_QUEUE_FULL"
    other = world.submit(make_request("r9", tenant="bolt", at=world.now))
    last = world.submit(make_request("r10", tenant="bolt", at=world.now))
    world.settle()
    assert state_of(world, other) is JobState.QUEUED
    assert world.read(last).outcome == "QUEUE_FULL"
    assert world.clients[last][-1].failed.retry_delay_ms > 0
    world.add_worker("w1")
    finish(world)


def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    world = make_world()
    worker = world.add_worker("w1", kv_cells=200)
    world.settle()
    status = worker.status()
    status.prefill_tokens_per_s = 10.0
    world.do(world.core.on_heartbeat(status, world.now))
    hopeless = submit(world, "hopeless", prompt=40, deadline=world.now + 1.0)
    assert world.read(hopeless).outcome == "DEADLINE_UNREACHABLE"
    assert state_of(world, submit(world, "fine", prompt=40, deadline=world.now + 30.0)) is JobState.RUNNING
    finish(world)


def test_a_waiting_request_is_told_again_when_its_position_changed_much() -> None:
    world = make_world(FairnessSettings())
    worker = world.add_worker("w1", slots=1)
    world.settle()
    keys = [submit(world, f"r{i}", max_tokens=2) for i in range(9)]
    for _ in range(16):
        worker.step()
        worker.beat()
        world.settle()
        world.pass_time(1.0)
    positions = [c.queued.position for c in world.clients[keys[-1]] if c.HasField("queued")]
    assert positions[0] == 7
    assert positions == sorted(positions, reverse=True)
    assert len(positions) >= 3
    finish(world)
