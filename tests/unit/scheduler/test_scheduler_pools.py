"""Requests that are held to the workers of some pools."""

from __future__ import annotations

import pytest
from harness.scheduler_world import SimWorker, World, make_request

from inferflux.common.contract.errors import InvalidArgument
from inferflux.scheduler.core.lifecycle.checks import check_job
from inferflux.scheduler.core.types.jobs import RequestKey
from inferflux.scheduler.core.types.limits import Limits


@pytest.fixture
def world() -> World:
    world = World(Limits(settle_s=0.0, no_worker_timeout_s=10.0))
    world.pass_time(0.1)
    return world


def submit(world: World, request_id: str, *pools: str) -> RequestKey:
    request = make_request(request_id, at=world.now)
    request.worker_pools.extend(pools)
    return world.submit(request)


def in_pool(worker: SimWorker, pool: str) -> SimWorker:
    worker.pool = pool
    worker.beat()
    return worker


def test_a_request_runs_in_one_of_its_pools_and_others_run_everywhere(world: World) -> None:
    gold, plain = in_pool(world.add_worker("w-gold", slots=4), "gold"), world.add_worker("w-plain", slots=4)
    world.settle()
    held = [submit(world, f"gold-{i}", "silver", "gold") for i in range(4)]
    free = [submit(world, f"free-{i}") for i in range(4)]
    of_default = submit(world, "default-0", "default")
    world.settle()
    assert set(held) == set(gold.residents)
    assert set(plain.residents) <= {*free, of_default}
    world.live(60)
    world.check_quiet()
    assert all(world.read(key).outcome == "length" for key in (*held, *free, of_default))


def test_a_request_whose_pool_is_full_holds_up_none_of_another_pool(world: World) -> None:
    in_pool(world.add_worker("w-gold", slots=1), "gold")
    plain = world.add_worker("w-plain", slots=2)
    world.settle()
    for i in range(5):
        submit(world, f"gold-{i}", "gold")
    other = submit(world, "other", "default")
    world.settle()
    assert set(plain.residents) == {other}
    world.live(60)
    world.check_quiet()


def test_a_request_waits_for_a_worker_of_its_pools_and_fails_when_none_comes(world: World) -> None:
    world.add_worker("w-plain")
    world.settle()
    key = submit(world, "gold", "gold")
    world.settle()
    for _ in range(9):
        world.workers["w-plain"].beat()
        world.settle()
        world.pass_time(1.0)
    assert not world.read(key).outcome
    for _ in range(3):
        world.workers["w-plain"].beat()
        world.settle()
        world.pass_time(1.0)
    assert world.read(key).outcome == "NO_WORKER"
    assert not world.core._unserved._since_s
    assert "w-plain" in world.core.table.workers


def test_a_request_whose_worker_dies_goes_on_in_its_pool(world: World) -> None:
    gold = in_pool(world.add_worker("w-gold"), "gold")
    plain = world.add_worker("w-plain")
    world.settle()
    key = submit(world, "gold", "gold")
    world.settle()
    assert key in gold.residents
    gold.die()
    world.settle()
    assert key not in plain.residents
    in_pool(world.add_worker("w-gold-2"), "gold")
    world.settle()
    world.live(30)
    assert world.read(key).outcome == "length"


@pytest.mark.parametrize("pools", [["a b"], [""], [f"p{i}" for i in range(17)]])
def test_a_job_with_pools_that_cannot_be_is_refused(pools: list[str]) -> None:
    request = make_request("r")
    request.worker_pools.extend(pools)
    with pytest.raises(InvalidArgument) as caught:
        check_job(request)
    assert caught.value.field.startswith("worker_pools")
