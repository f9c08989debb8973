"""Workers that have different files under one name: what was begun with one is not continued with another."""

from __future__ import annotations

import pytest
from harness.host_world import HostWorld, SimModel
from harness.scheduler_world import World, make_request

from inferflux.common.contract.errors import InvalidArgument
from inferflux.scheduler.core.lifecycle.checks import check_job
from inferflux.scheduler.core.types.jobs import RequestKey
from inferflux.scheduler.core.types.limits import Limits

LIMITS = Limits(settle_s=0.0, no_worker_timeout_s=10.0)


@pytest.fixture
def world() -> World:
    world = World(LIMITS)
    world.pass_time(0.1)
    return world


def submit(world: World, request_id: str, digest: str, *, max_tokens: int = 4) -> RequestKey:
    request = make_request(request_id, at=world.now, max_tokens=max_tokens)
    request.model_digest = digest
    return world.submit(request)


def test_a_request_runs_where_its_file_is_and_one_that_names_none_runs_everywhere(world: World) -> None:
    one, two = world.add_worker("one", slots=4, digest="d1"), world.add_worker("two", slots=4, digest="d2")
    world.settle()
    held = [submit(world, f"held-{i}", "d1") for i in range(6)]
    free = [submit(world, f"free-{i}", "") for i in range(4)]
    world.settle()
    assert set(one.residents) <= {*held, *free}
    assert set(two.residents) <= set(free)
    world.live(60)
    world.check_quiet()
    assert all(world.read(key).outcome == "length" for key in (*held, *free))


def test_a_stream_whose_worker_dies_is_not_continued_with_another_file(world: World) -> None:
    one, two = world.add_worker("one", digest="d1"), world.add_worker("two", digest="d2")
    world.settle()
    key = submit(world, "r", "d1", max_tokens=20)
    world.settle()
    for _ in range(3):
        one.step()
    world.settle()
    assert key in one.residents
    one.die()
    world.workers.pop("one")
    world.settle()
    world.live(5)
    assert key not in two.residents
    assert not world.read(key).outcome
    world.add_worker("three", digest="d1")
    world.settle()
    world.live(60)
    assert world.read(key).outcome == "length"


def test_a_request_whose_file_is_gone_ends_and_says_so(world: World) -> None:
    world.add_worker("two", digest="d2")
    world.settle()
    key = submit(world, "r", "d1")
    for _ in range(12):
        world.workers["two"].beat()
        world.settle()
        world.pass_time(1.0)
    assert world.read(key).outcome == "MODEL_REPLACED"


def test_a_host_with_another_file_does_not_load_it_for_a_request() -> None:
    world = HostWorld(LIMITS)
    other = world.add_host([SimModel("a", digest="d2")], host_id="g")
    right = world.add_host([SimModel("a", digest="d1")], host_id="h")
    request = make_request("r", model="a", at=world.now)
    request.model_digest = "d1"
    key = world.submit(request)
    world.settle()
    world.until_quiet(20)
    assert world.read(key).outcome == "length"
    assert (other.models["a"].loads, right.models["a"].loads) == (0, 1)


@pytest.mark.parametrize("digest", ["a b", "x" * 300])
def test_a_job_with_a_digest_that_cannot_be_is_refused(digest: str) -> None:
    request = make_request("r")
    request.model_digest = digest
    with pytest.raises(InvalidArgument) as caught:
        check_job(request)
    assert caught.value.field == "model_digest"
