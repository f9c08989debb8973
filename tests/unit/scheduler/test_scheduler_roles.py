"""Workers of roles, and the pools that they make."""

from __future__ import annotations

import pytest
from harness.scheduler_requests import finish, make_world, state_of, submit
from harness.scheduler_world import make_request

from inferflux.scheduler.core.types.jobs import JobState
from inferflux.scheduler.core.workers import pools
from inferflux.scheduler.operator.status import describe
from inferflux.v1 import scheduler_pb2

READY = scheduler_pb2.WORKER_STATE_READY
DRAINING = scheduler_pb2.WORKER_STATE_DRAINING


def worker(
    role: scheduler_pb2.WorkerRole.ValueType, state: scheduler_pb2.WorkerState.ValueType = READY
) -> scheduler_pb2.WorkerStatus:
    return scheduler_pb2.WorkerStatus(role=role, state=state)


def test_a_pool_counts_the_workers_of_its_role_that_are_ready() -> None:
    fleet = [
        worker(pools.PREFILL),
        worker(pools.PREFILL, DRAINING),
        worker(pools.DECODE),
        worker(pools.DECODE),
        worker(pools.UNIFIED),
        worker(scheduler_pb2.WORKER_ROLE_UNSPECIFIED),
    ]
    assert [pool.ready for pool in pools.pools(map(pools.ready_role, fleet))] == [1, 2]


def watch(prefill: int, decode: int, *statuses: scheduler_pb2.WorkerStatus) -> pools.PoolWatch:
    """A watch that has had a heartbeat of each at 0 s, under the names 0, 1, ..."""
    made = pools.PoolWatch(prefill=prefill, decode=decode, dead_s=3.0)
    for number, status in enumerate(statuses):
        status.worker_id, status.incarnation = str(number), "i"
        made.on_heartbeat(status, 0.0)
    return made


@pytest.mark.parametrize(
    ("prefill", "decode", "why"),
    [
        (0, 0, []),
        (1, 1, []),
        (1, 2, ["decode pool not ready: 1 of 2 workers"]),
        (3, 2, ["prefill pool not ready: 1 of 3 workers", "decode pool not ready: 1 of 2 workers"]),
    ],
)
def test_a_pool_that_is_smaller_than_it_should_be_is_named(prefill: int, decode: int, why: list[str]) -> None:
    fleet = [worker(pools.PREFILL), worker(pools.DECODE), worker(pools.DECODE, DRAINING)]
    small = watch(prefill, decode, *fleet).small(0.0)
    assert [pool.not_ready for pool in small] == why
    assert [pool.reason for pool in small] == [each.partition(":")[0] for each in why]


def test_a_worker_counts_in_its_pool_until_it_drains_leaves_or_is_silent() -> None:
    both = watch(0, 2, worker(pools.DECODE), worker(pools.DECODE))
    assert not both.small(2.9)
    assert [pool.ready for pool in both.small(3.0)] == [0]
    both = watch(0, 2, worker(pools.DECODE), worker(pools.DECODE))
    both.on_left("0", "another")
    assert not both.small(0.0)
    both.on_left("0", "i")
    assert [pool.ready for pool in both.small(0.0)] == [1]
    both.on_heartbeat(scheduler_pb2.WorkerStatus(worker_id="1", role=pools.DECODE, state=DRAINING), 0.0)
    assert [pool.ready for pool in both.small(0.0)] == [0]


def test_workers_of_a_role_beyond_all_that_are_known_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "MAX_WORKERS", 2)
    full = watch(0, 3, *(worker(pools.DECODE) for _ in range(3)))
    assert [pool.ready for pool in full.small(0.0)] == [2]


def test_a_role_of_a_later_version_is_a_unified_worker() -> None:
    assert pools.role_of(worker(9)) == pools.UNIFIED  # type: ignore[arg-type]
    assert pools.name_of(pools.role_of(worker(pools.DECODE))) == "decode"


def test_a_prefill_worker_takes_whole_requests_only_where_no_other_has_room() -> None:
    world = make_world(prefill_pool_size=1, decode_pool_size=2)
    prefill = world.add_worker("a", slots=2, kv_cells=200, role=pools.PREFILL)
    decode = world.add_worker("b", slots=2, kv_cells=200, role=pools.DECODE)
    world.settle()
    keys = [submit(world, f"r{i}") for i in range(5)]
    assert [key for key in keys if key in decode.residents] == keys[:2]
    assert [key for key in keys if key in prefill.residents] == keys[2:4]
    assert state_of(world, keys[4]) is JobState.QUEUED
    told = [(pool.role, pool.ready, pool.expected) for pool in describe(world.core, world.now).pools]
    assert told == [(pools.PREFILL, 1, 1), (pools.DECODE, 1, 2)]
    finish(world)


def test_a_prefill_worker_serves_alone_what_no_other_worker_has() -> None:
    world = make_world()
    prefill = world.add_worker("a", role=pools.PREFILL)
    world.settle()
    assert submit(world, "r") in prefill.residents
    finish(world)


def test_a_prefix_draws_no_whole_request_to_a_prefill_worker() -> None:
    world = make_world()
    for worker_id, role in (("a", pools.PREFILL), ("b", pools.UNIFIED)):
        world.add_worker(worker_id, kv_cells=200, role=role)
    world.settle()
    request = make_request("r", prompt=40, at=world.now)
    world.do(world.core.on_job(request, 1, 1, world.now, cached_on={"a": 40}))
    (job,) = world.core.jobs.values()
    assert job.worker_id == "b"
