"""What the scheduler says about itself."""

from __future__ import annotations

from harness.scheduler_world import World, make_request

from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.scheduler.operator.status import describe, fit
from inferflux.v1 import scheduler_pb2


def sliced_world() -> World:
    """One worker where two may run, and three requests with timeslices of one token."""
    world = World(fairness=FairnessSettings(max_timeslice_tokens=1))
    world.pass_time(0.1)
    world.add_worker("w1", kv_cells=100)
    world.settle()
    for i in range(3):
        world.submit(make_request(f"r{i}", at=world.now, max_tokens=20))
    world.settle()
    return world


def test_a_request_that_waits_to_resume_is_parked_and_not_queued() -> None:
    world = sliced_world()
    world.pass_time(0.1)
    world.workers["w1"].step()
    world.settle()
    status = describe(world.core, world.now)
    assert (status.running, status.queued, status.parked) == (2, 0, 1)
    (view,) = status.workers
    states = [slot.state for slot in view.slots]
    assert states == ["running", "running"]
    assert {(slot.tenant, slot.epoch) for slot in view.slots} == {("acme", 1)}


def test_the_order_and_the_fairness_settings_are_told() -> None:
    status = describe(sliced_world().core, 1000.0)
    assert status.policy == "priority"
    assert status.fairness == scheduler_pb2.Fairness(
        high_priority_threshold=5, max_timeslice_tokens=1, version=1
    )


def test_a_status_too_large_for_a_message_goes_without_its_slots() -> None:
    status = describe(sliced_world().core, 1000.0)
    whole = fit(status, 1_000_000)
    assert scheduler_pb2.SchedulerStatus.FromString(whole).workers[0].slots
    cut = scheduler_pb2.SchedulerStatus.FromString(fit(status, len(whole) - 1))
    assert not cut.workers[0].slots
    assert cut.workers[0].status.worker_id == "w1"
    assert cut.running == 2


def test_a_page_of_workers_counts_all_of_them() -> None:
    world = sliced_world()
    for name in ("w3", "w2"):
        world.add_worker(name)
    world.settle()
    totals = scheduler_pb2.WorkerTotals(workers=3, ready=3, slots=6)
    for page_size, after, told in ((0, "", ["w1", "w2", "w3"]), (2, "", ["w1", "w2"]), (2, "w2", ["w3"])):
        asked = scheduler_pb2.SchedulerStatusRequest(page_size=page_size, after_worker_id=after)
        status = describe(world.core, world.now, asked)
        assert [view.status.worker_id for view in status.workers] == told
        assert status.worker_totals == totals
    unasked = describe(world.core, world.now, scheduler_pb2.SchedulerStatusRequest(without_workers=True))
    assert not unasked.workers
    assert unasked.worker_totals == totals


def test_those_who_see_the_status_do_not_see_the_tickets_of_workers() -> None:
    world = sliced_world()
    worker = world.core.table.workers["w1"]
    worker.status.kv_source.address, worker.status.kv_source.ticket = "a:1", "secret"
    (view,) = describe(world.core, world.now).workers
    assert view.status.kv_source == scheduler_pb2.KvSource(address="a:1")
    assert worker.status.kv_source.ticket == "secret"
