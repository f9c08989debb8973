"""Workers in the zone of a request's gateway are preferred, while they are not much busier."""

from __future__ import annotations

import pytest
from harness.scheduler_world import SimWorker, World, make_request

from inferflux.common.contract.errors import InvalidArgument
from inferflux.scheduler.core.lifecycle.checks import check_job
from inferflux.scheduler.core.types.jobs import RequestKey
from inferflux.scheduler.core.types.limits import Limits
from inferflux.scheduler.core.workers import placement


@pytest.fixture
def world() -> World:
    world = World(Limits(settle_s=0.0, no_worker_timeout_s=10.0))
    world.pass_time(0.1)
    return world


def submit(world: World, request_id: str, zone: str, prompt: int = 3) -> RequestKey:
    return world.submit(make_request(request_id, prompt=prompt, at=world.now, zone=zone))


def in_zone(worker: SimWorker, zone: str) -> SimWorker:
    worker.zone = zone
    worker.beat()
    return worker


def test_requests_run_in_their_gateway_s_zone(world: World) -> None:
    near = {zone: in_zone(world.add_worker(f"w-{zone}", slots=8), zone) for zone in ("a", "b")}
    world.settle()
    held = {zone: {submit(world, f"{zone}-{i}", zone) for i in range(4)} for zone in ("b", "a")}
    world.settle()
    assert {zone: set(worker.residents) for zone, worker in near.items()} == held
    world.live(60)
    world.check_quiet()


def test_requests_cross_to_another_zone_when_theirs_is_full(world: World) -> None:
    near, far = in_zone(world.add_worker("w-a", slots=2), "a"), in_zone(world.add_worker("w-b"), "b")
    world.settle()
    keys = [submit(world, f"r-{i}", "a") for i in range(3)]
    world.settle()
    assert len(near.residents) == 2
    assert len(far.residents) == 1
    assert {*near.residents, *far.residents} == set(keys)


def test_requests_cross_once_a_near_worker_holds_much_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "FAR_TOKENS", 20)
    near = in_zone(world.add_worker("w-a", slots=8, kv_cells=200), "a")
    far = in_zone(world.add_worker("w-b", slots=8, kv_cells=200), "b")
    world.settle()
    first = submit(world, "short", "a", prompt=8)
    world.settle()
    second = submit(world, "long", "a", prompt=20)
    world.settle()
    third = submit(world, "next", "a")
    world.settle()
    assert set(near.residents) == {first, second}
    assert set(far.residents) == {third}


@pytest.mark.parametrize("zones", [("", "a"), ("a", ""), ("", "")])
def test_a_zone_that_is_not_known_is_neither_near_nor_far(world: World, zones: tuple[str, str]) -> None:
    of_worker, of_request = zones
    workers = [in_zone(world.add_worker(f"w-{i}", slots=8), of_worker) for i in range(2)]
    world.settle()
    for i in range(8):
        submit(world, f"r-{i}", of_request)
    world.settle()
    assert [len(worker.residents) for worker in workers] == [4, 4]


def test_what_ran_in_a_zone_that_is_lost_goes_on_in_another(world: World) -> None:
    lost = [in_zone(world.add_worker(f"w-a{i}", slots=4), "a") for i in range(3)]
    in_zone(world.add_worker("w-b", slots=12), "b")
    world.settle()
    keys = [submit(world, f"r-{i}", "a") for i in range(12)]
    world.settle()
    assert sum(len(worker.residents) for worker in lost) == 12
    for worker in lost:
        worker.step()
        worker.die()
    world.live(120)
    world.check_quiet()
    assert [world.read(key).outcome for key in keys] == ["length"] * 12


def test_a_zone_has_a_name_that_could_be_one(world: World) -> None:
    request = make_request("r", at=world.now)
    request.zone = "a zone"
    with pytest.raises(InvalidArgument) as refused:
        check_job(request)
    assert refused.value.field == "zone"
