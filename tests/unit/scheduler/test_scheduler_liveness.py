"""Workers that die, fall silent or make no progress."""

from __future__ import annotations

from harness.scheduler_requests import finish, make_world, state_of, submit

from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.jobs import JobState


def test_a_request_that_makes_no_progress_is_requeued_and_runs_elsewhere() -> None:
    world = make_world(FairnessSettings(), stuck_s=10.0)
    stuck = world.add_worker("w1")
    world.settle()
    key = submit(world, "r1")
    spare = world.add_worker("w2")
    counted: list[str] = []
    for _ in range(12):
        counted += [
            a.cause
            for a in world.core.on_heartbeat(stuck.status(), world.now)
            if isinstance(a, actions.CountRetry)
        ]
        world.do([])
        spare.beat()
        world.settle()
        world.pass_time(1.0)
    assert counted == ["stuck"]
    assert key in spare.residents or world.read(key).outcome
    finish(world)


def test_a_worker_that_follows_another_leader_takes_nothing() -> None:
    world = make_world()
    worker = world.add_worker("w1")
    worker.term = 99
    world.settle()
    key = submit(world, "r1")
    assert state_of(world, key) is JobState.QUEUED
    assert not worker.residents


def test_a_worker_with_no_listener_is_dead_before_its_silence_says_so() -> None:
    world = make_world(worker_dead_s=30.0, probe_after_s=1.3)
    world.add_worker("w1")
    world.settle()
    key = submit(world, "r1")
    del world.workers["w1"]
    spare = world.add_worker("w2")
    world.settle()
    world.pass_time(1.0)
    world.settle()
    assert state_of(world, key) is JobState.RUNNING
    world.pass_time(0.5)
    world.settle()
    assert spare.residents[key].epoch == 2
    finish(world)


def test_what_a_worker_had_goes_on_elsewhere_as_soon_as_its_witness_reports_its_death() -> None:
    world = make_world()
    first = world.add_worker("w1", kv_cells=400)
    world.settle()
    key = submit(world, "r", max_tokens=9)
    first.step()
    second = world.add_worker("w2", kv_cells=400)
    world.settle()
    late = first.status()
    first.die()
    world.settle()
    assert second.residents[key].is_running
    assert world.core.jobs[key].retries.worker_deaths == 1
    world.do(world.core.on_heartbeat(late, world.now))  # it was on its way
    assert "w1" not in world.core.table.workers
    del world.workers["w1"]
    finish(world)


def test_a_worker_whose_death_was_forged_is_taken_back_when_it_goes_on_reporting() -> None:
    world = make_world()
    worker = world.add_worker("w1", kv_cells=400)
    world.settle()
    event = worker.event()
    event.worker_died.SetInParent()
    world.do(world.core.on_event(event, world.now))
    assert not world.core.table.workers
    for _ in range(5):
        world.pass_time(1.0)
        worker.beat()
        world.settle()
    assert list(world.core.table.workers) == ["w1"]


def test_a_worker_whose_heartbeat_is_late_is_probed_once_and_kept() -> None:
    world = make_world(worker_dead_s=30.0, probe_after_s=1.3)
    worker = world.add_worker("w1")
    world.settle()
    key = submit(world, "r1")
    for _ in range(8):
        world.pass_time(0.5)
        world.settle()
    assert world.probed == ["w1"]
    assert [len(batch.items) for batch in worker.batches] == [1]
    assert state_of(world, key) is JobState.RUNNING
    finish(world)
