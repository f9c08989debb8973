"""Urgent requests preempt the least urgent, and ordinary ones keep their share."""

from __future__ import annotations

from collections import Counter

import pytest
from harness.scheduler_requests import PREEMPTING, epochs, finish, make_world, state_of, submit
from harness.scheduler_world import PARKED, make_request

from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.scheduler.core.order.urgent import URGENT_LEAD_S
from inferflux.scheduler.core.types.jobs import JobState, RequestKey
from inferflux.v1 import worker_pb2


def test_an_urgent_request_preempts_the_least_urgent_which_resumes_where_it_stopped() -> None:
    world = make_world()
    worker = world.add_worker("w1", kv_cells=200)
    world.settle()
    middle, low = submit(world, "middle", priority=2), submit(world, "low", priority=1)
    worker.step()
    world.settle()
    urgent = submit(world, "urgent", priority=9, max_tokens=2)
    assert state_of(world, urgent) is JobState.RUNNING
    assert state_of(world, middle) is JobState.RUNNING
    assert state_of(world, low) is JobState.PARKED
    assert worker.residents[low].residence == PARKED
    (preempting,) = [batch for batch in worker.batches if batch.deschedule]
    assert [item.request.request_id for item in preempting.items] == ["urgent"]
    finish(world)
    assert worker.batches[-1].phase == worker_pb2.PHASE_DECODE
    assert not worker.batches[-1].items[0].request.prompt_token_ids
    assert epochs(world, low) == {1}


@pytest.mark.parametrize(
    ("fairness", "priority"),
    [(FairnessSettings(), 9), (PREEMPTING, 4), (FairnessSettings(True, high_priority_threshold=10), 9)],
)
def test_no_request_is_preempted_unless_that_is_enabled_and_the_other_is_urgent(
    fairness: FairnessSettings, priority: int
) -> None:
    world = make_world(fairness)
    worker = world.add_worker("w1", slots=1)
    world.settle()
    running = submit(world, "running")
    waiting = submit(world, "waiting", priority=priority)
    assert (state_of(world, running), state_of(world, waiting)) == (JobState.RUNNING, JobState.QUEUED)
    world.core.set_fairness(PREEMPTING)  # live
    world.do([])
    world.settle()
    assert (state_of(world, waiting) is JobState.RUNNING) == (priority >= 5)
    finish(world)
    assert not worker.residents


def test_equal_priority_does_not_preempt() -> None:
    world = make_world()
    world.add_worker("w1", slots=1)
    world.settle()
    submit(world, "first", priority=7)
    second = submit(world, "second", priority=7)
    assert state_of(world, second) is JobState.QUEUED
    finish(world)


def test_on_a_single_slot_a_request_that_waited_longer_than_the_lead_of_the_urgent_keeps_its_place() -> None:
    world = make_world()
    world.add_worker("w1", slots=1)
    world.settle()
    submit(world, "before", priority=5, max_tokens=16)
    old = submit(world, "old", priority=0)
    for _ in range(8):  # the lead, 5 levels at 2 s each, and some
        world.pass_time(9.0)
        world.workers["w1"].beat()
        world.settle()
    world.cancel(RequestKey("acme", "before"))
    world.settle()
    assert state_of(world, old) is JobState.RUNNING
    fresh = submit(world, "fresh", priority=5)
    assert state_of(world, fresh) is JobState.QUEUED
    finish(world)


def test_on_a_single_slot_urgent_requests_starve_no_other_beyond_their_lead() -> None:
    world = make_world()
    worker = world.add_worker("w1", slots=1, kv_cells=60)
    world.settle()
    submit(world, "u0", priority=5, max_tokens=2)  # from here on, one comes whenever one has ended
    low = submit(world, "low", priority=0, max_tokens=3)
    began = world.now
    for i in range(1, 200):
        submit(world, f"u{i}", priority=5, max_tokens=2)
        worker.step()
        worker.step()
        worker.beat()
        world.settle()
        world.pass_time(0.5)
        if world.read(low).outcome:
            break
    # The lead, 5 levels at 2 s each, and what runs at that moment.
    bound_s = URGENT_LEAD_S + 5 * 2.0
    assert world.read(low).outcome == "length"
    assert bound_s <= world.now - began <= bound_s + 4.0


def test_in_a_stream_of_urgent_requests_others_keep_the_slots_that_are_guaranteed_to_them() -> None:
    world = make_world()
    worker = world.add_worker("w1", slots=4, kv_cells=400)
    world.settle()
    low = [submit(world, f"low{i}", max_tokens=12) for i in range(3)]
    for i in range(40):
        submit(world, f"u{i}", priority=9, max_tokens=3)
        if i >= 3:
            running = [sequence for sequence in worker.residents.values() if sequence.is_running]
            assert Counter(sequence.request.priority for sequence in running) == {0: 1, 9: 3}
        worker.step()
        world.settle()
        if all(world.read(key).outcome for key in low):
            break
    # One after the other: each has one slot of four, and is not preempted there.
    assert i < 3 * 12 + 4
    finish(world)


def test_no_request_however_old_goes_before_an_urgent_one_where_others_have_their_share() -> None:
    world = make_world()
    worker = world.add_worker("w1", slots=4, kv_cells=400)
    world.settle()
    for i in range(8):
        submit(world, f"low{i}", max_tokens=16)
    for _ in range(40):
        world.pass_time(10.0)
        worker.beat()
        world.settle()
    urgent = submit(world, "urgent", priority=5, max_tokens=3)
    assert state_of(world, urgent) is JobState.RUNNING
    finish(world)


def test_a_victim_that_was_not_told_goes_on_in_its_epoch() -> None:
    world = make_world()
    worker = world.add_worker("w1", slots=1, kv_cells=200)
    world.settle()
    low = submit(world, "low")
    world.submit(make_request("urgent", at=world.now, priority=9))
    world.deliver()
    (batch_id,) = world.in_flight
    world.network.clear()  # the batch is lost
    world.time_out(batch_id)
    assert state_of(world, low) is JobState.PARKED
    for _ in range(3):
        worker.step()
        worker.beat()
        world.settle()
    finish(world)
    assert epochs(world, low) == {1}


def test_an_urgent_request_that_must_be_read_first_preempts_at_once() -> None:
    world = make_world()
    lost = world.add_worker("w1", slots=1, kv_cells=200)
    world.settle()
    urgent = submit(world, "urgent", priority=9)
    lost.step()
    world.settle()
    other = world.add_worker("w2", slots=1, kv_cells=200)
    world.settle()
    low = submit(world, "low")
    other.step()
    del world.workers["w1"]
    lost.leave()
    world.settle()
    assert state_of(world, urgent) is JobState.RUNNING
    assert other.residents[low].residence == PARKED
    assert world.core.jobs[urgent].retries.refusals == 0
    finish(world)
