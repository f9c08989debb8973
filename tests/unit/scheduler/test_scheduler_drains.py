"""Draining workers."""

from __future__ import annotations

import pytest
from harness.scheduler_requests import finish, make_world, state_of, submit
from harness.scheduler_world import SimWorker, World

from inferflux.common.contract.errors import NotFound
from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.scheduler.core.types.jobs import JobState


def drain(world: World, worker_id: str, **how: object) -> None:
    world.do(world.core.commands.drain(worker_id, now=world.now, **how))  # type: ignore[arg-type]
    world.settle()


def test_a_draining_worker_finishes_what_it_has_and_takes_nothing_new() -> None:
    world = make_world(FairnessSettings(True, 5, 3))
    worker = world.add_worker("w1", slots=1, kv_cells=200)
    world.settle()
    low = submit(world, "low")
    submit(world, "urgent", priority=9)
    drain(world, "w1")
    waiting = submit(world, "waiting", priority=3)
    assert world.core.commands.drain_progress("w1").residents == 2
    for _ in range(40):
        worker.step()
        worker.beat()
        world.settle()
        world.pass_time(0.1)
    assert world.read(low).outcome == "length"
    assert state_of(world, waiting) is JobState.QUEUED
    assert world.core.commands.drain_progress("w1").is_drained
    drain(world, "w1", undo=True)
    worker.beat()
    world.settle()
    assert state_of(world, waiting) is JobState.RUNNING
    finish(world)


def test_what_a_draining_worker_does_not_finish_in_time_is_handed_over() -> None:
    world = make_world()
    old = world.add_worker("w1", slots=1, kv_cells=200)
    world.settle()
    low = submit(world, "low")
    urgent = submit(world, "urgent", priority=9)
    new: SimWorker = world.add_worker("w2", slots=4, kv_cells=200)
    drain(world, "w1", hand_over_after_s=1.0)
    assert {low, urgent} <= old.residents.keys()
    world.pass_time(1.1)
    world.settle()
    assert not old.residents
    assert {low, urgent} <= new.residents.keys()
    old.beat()
    world.settle()
    assert world.core.commands.drain_progress("w1").is_drained
    finish(world)
    assert world.core.jobs == {}


def test_a_worker_that_was_killed_while_it_drained_takes_requests_when_it_starts_again() -> None:
    world = make_world()
    world.add_worker("w1", slots=1)
    world.settle()
    drain(world, "w1")
    del world.workers["w1"]
    world.pass_time(3.5)
    world.add_worker("w1", slots=1)
    world.settle()
    assert state_of(world, submit(world, "r1")) is JobState.RUNNING
    finish(world)


def test_a_request_that_only_a_draining_worker_could_serve_is_told_so() -> None:
    world = make_world()
    worker = world.add_worker("w1", slots=1, kv_cells=200)
    world.settle()
    drain(world, "w1")
    waiting = submit(world, "waiting")
    for _ in range(120):
        worker.beat()
        world.pass_time(0.1)
        world.settle()
    assert world.log[waiting][-1].failed.message.endswith("for 10 s: w1 is draining")


def test_only_a_worker_that_lives_can_be_drained() -> None:
    world = make_world()
    with pytest.raises(NotFound, match=r"^no worker w9"):
        world.core.commands.drain("w9", now=world.now)
