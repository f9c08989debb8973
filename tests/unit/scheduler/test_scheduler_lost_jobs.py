"""Requests that gateways read and whose jobs do not come."""

from __future__ import annotations

import pytest
from harness.scheduler_world import World, make_request

from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.jobs import Attempt, RequestKey
from inferflux.scheduler.core.types.limits import Limits

LOST = Attempt(RequestKey("acme", "lost"), "a1")


@pytest.fixture
def world() -> World:
    world = World(Limits(settle_s=0.0, unowned_grace_s=3.0))
    world.pass_time(0.1)
    return world


def read(world: World, attempt: Attempt, seconds: int) -> list[Attempt]:
    """Have a gateway report a reader once a second; what is suspected to be lost meanwhile."""
    suspected = []
    for _ in range(seconds):
        world.core.cancels.on_readers("g1", [attempt], world.now)
        world.now += 1.0
        todo = world.core.on_tick(world.now)
        suspected += [action.attempt for action in todo if isinstance(action, actions.EndLost)]
    return suspected


def test_a_request_that_is_read_and_has_no_job_is_suspected_after_a_while_and_again(world: World) -> None:
    assert read(world, LOST, 2) == []
    assert read(world, LOST, 4) == [LOST, LOST]


def test_a_request_whose_job_comes_is_not_suspected(world: World) -> None:
    assert read(world, LOST, 2) == []
    world.submit(make_request("lost", at=world.now, attempt="a1"))
    world.settle()
    assert read(world, LOST, 8) == []


def test_a_request_that_ended_lately_is_not_suspected(world: World) -> None:
    world.add_worker("w1")
    key = world.submit(make_request("lost", at=world.now, attempt="a1"))
    world.settle()
    world.live(20)
    assert world.read(key).outcome
    assert read(world, LOST, 8) == []


def test_a_request_that_is_not_read_any_more_is_forgotten(world: World) -> None:
    assert read(world, LOST, 2) == []
    world.pass_time(5.0)
    assert not [a for a in world.core.on_tick(world.now) if isinstance(a, actions.EndLost)]
    assert read(world, LOST, 2) == []


def test_while_jobs_of_an_earlier_scheduler_come_none_is_suspected(world: World) -> None:
    for i in range(6):
        world.core.on_job(make_request(f"r{i}", at=world.now), i, i, world.now, is_inherited=True)
        assert read(world, LOST, 1) == []
    assert read(world, LOST, 3) == [LOST]


def test_a_scheduler_of_a_partition_suspects_none(world: World) -> None:
    world.core.cancels._is_alone = False
    assert read(world, LOST, 8) == []
