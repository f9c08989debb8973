"""Requests that wait to resume: timeslices, memory, moves, and runs that are told apart."""

from __future__ import annotations

import pytest
from harness.scheduler_requests import SLICING, epochs, finish, make_world, state_of, submit
from harness.scheduler_world import PARKED, SWAPPED, make_request

from inferflux.common.contract.requests import kv_cells
from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.jobs import Attempt, JobState, RequestKey
from inferflux.v1 import scheduler_pb2, worker_pb2


def test_ordinary_requests_run_in_timeslices_and_urgent_ones_do_not() -> None:
    world = make_world(SLICING)
    worker = world.add_worker("w1", slots=1, kv_cells=200)
    world.settle()
    first = submit(world, "first", max_tokens=8)
    second = submit(world, "second", max_tokens=8)
    world.pass_time(0.1)
    for _ in range(3):
        worker.step()
    assert worker.residents[first].residence == PARKED  # by itself
    world.settle()
    assert (state_of(world, first), state_of(world, second)) == (JobState.PARKED, JobState.RUNNING)
    submit(world, "urgent", priority=5)
    finish(world)
    budgets = {item.request.request_id: item.token_budget for b in worker.batches for item in b.items}
    assert budgets == {"first": 3, "second": 3, "urgent": 0}
    assert epochs(world, first) == epochs(world, second) == {1}


def test_a_request_resumes_at_once_after_its_timeslice_if_none_waits() -> None:
    world = make_world(SLICING)
    worker = world.add_worker("w1", slots=1)
    world.settle()
    key = submit(world, "alone", max_tokens=7)
    for _ in range(3):
        worker.step()
    world.settle()
    assert worker.residents[key].is_running
    finish(world)


def test_a_parked_request_moves_to_another_worker_once_that_is_sooner() -> None:
    world = make_world(move_after_s=2.0)
    first = world.add_worker("w1", slots=1, kv_cells=200)
    world.settle()
    low = submit(world, "low")
    first.step()
    submit(world, "urgent", priority=9)
    second = world.add_worker("w2", slots=1, kv_cells=200)
    world.settle()
    assert low not in second.residents  # it may be its turn soon
    for _ in range(3):
        world.pass_time(1.0)
        first.beat()
        second.beat()
        world.settle()
    assert low in second.residents
    assert low not in first.residents
    assert second.residents[low].epoch == 2
    finish(world)
    assert world.core.jobs == {}


def test_the_worker_chooses_what_to_evict_and_the_table_follows_its_reports() -> None:
    world = make_world()
    worker = world.add_worker("w1", slots=1, kv_cells=400)
    world.settle()
    keys = []
    for i in range(4):
        keys.append(submit(world, f"r{i}", priority=2 * i + 5 if i else 0))
        worker.step()
        world.settle()
    assert [key for key in keys if worker.residents[key].residence == SWAPPED] == keys[:2]
    assert worker.residents[keys[3]].is_running
    assignments = world.core.table.workers["w1"].assignments
    assert {key: a.residence.value for key, a in assignments.items() if not a.is_running} == {
        keys[0]: SWAPPED,
        keys[1]: SWAPPED,
        keys[2]: PARKED,
    }
    world.check()
    finish(world)
    assert all(epochs(world, key) == {1} for key in keys)


def test_what_the_worker_swapped_out_for_lack_of_memory_goes_on_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_cells, "DECODE_HEADROOM", 4)  # both are loaded, and grow beyond the cache
    world = make_world(FairnessSettings())
    worker = world.add_worker("w1", slots=4, kv_cells=40)
    world.settle()
    keys = [submit(world, f"r{i}", max_tokens=30, prompt=2) for i in range(2)]
    worker.beat()
    finish(world)
    assert all(len(world.read(key).token_ids) == 30 for key in keys)
    assert any(batch.phase == worker_pb2.PHASE_DECODE for batch in worker.batches)


def test_a_request_whose_cells_were_taken_keeps_its_age_and_one_that_had_its_timeslice_does_not() -> None:
    world = make_world(SLICING)
    worker = world.add_worker("w1", slots=2, kv_cells=200)
    world.settle()
    came_s = world.now
    evicted, sliced = submit(world, "evicted"), submit(world, "sliced")
    world.pass_time(1.0)
    worker.deschedule(worker.residents[evicted], scheduler_pb2.YIELD_REASON_MEMORY)
    worker.deschedule(worker.residents[sliced], scheduler_pb2.YIELD_REASON_TIMESLICE)
    world.settle()
    assert [world.core.jobs[key].since_s for key in (evicted, sliced)] == [came_s, world.now]


def test_what_is_not_resident_any_more_is_computed_again() -> None:
    world = make_world(SLICING)
    worker = world.add_worker("w1", slots=1)
    world.settle()
    key = submit(world, "r1", max_tokens=7)
    for _ in range(3):
        worker.step()
    del worker.residents[key]
    world.settle()
    assert worker.residents[key].epoch == 2
    assert list(worker.residents[key].request.generated_token_ids) == [0, 1, 2]
    finish(world)


def test_a_parked_request_that_is_cancelled_is_ended_by_its_worker() -> None:
    world = make_world()
    world.add_worker("w1", slots=1, kv_cells=200)
    world.settle()
    low = submit(world, "low")
    submit(world, "urgent", priority=9)
    world.cancel(low)
    world.settle()
    assert world.read(low).outcome == "cancelled"
    finish(world)


def test_a_gateway_that_resumes_a_stream_finds_its_request_wherever_that_is() -> None:
    world = make_world()
    worker = world.add_worker("w1", slots=1, kv_cells=400)
    world.settle()
    resident = []
    for i in range(4):
        resident.append(submit(world, f"r{i}", priority=2 * i + 5 if i else 0))
        worker.step()
        world.settle()
    assert {worker.residents[key].residence for key in resident} >= {PARKED, SWAPPED}
    assert worker.residents[resident[3]].is_running
    queued = submit(world, "queued")
    assert state_of(world, queued) is JobState.QUEUED
    assert queued not in worker.residents
    for key in (*resident, queued):
        job = world.core.cancels.on_reader_joined("g2", Attempt(key), world.now)
        assert job is not None
        assert job.key == key
    finish(world)
    assert world.core.cancels.on_reader_joined("g2", Attempt(queued), world.now) is None


def test_an_idle_worker_takes_requests_from_one_that_slices_them() -> None:
    world = make_world(SLICING, move_after_s=2.0)
    world.add_worker("w1", slots=1, kv_cells=400)
    world.settle()
    keys = [submit(world, f"r{i}", max_tokens=40) for i in range(3)]

    def run(steps: int) -> None:
        for _ in range(steps):  # turns are far shorter than what a request waits before it moves
            for worker in world.workers.values():
                worker.step()
            world.settle()
            world.pass_time(0.1)
            for worker in world.workers.values():
                worker.beat()
            world.settle()

    run(9)
    assert len(world.workers["w1"].residents) == 3
    world.add_worker("w2", slots=1, kv_cells=400)
    run(80)  # one worker would need 111
    assert all(len(world.read(key).token_ids) == 40 for key in keys)
    finish(world)


def test_yields_and_resumes_are_counted() -> None:
    world = make_world(SLICING)
    worker = world.add_worker("w1", slots=1)
    world.settle()
    submit(world, "r1", max_tokens=7)
    worker.residents[RequestKey("acme", "r1")].budget = 1
    worker.step()
    counted = [*world.network.pop()(), *world.core.plan(world.now)]  # type: ignore[misc]
    kinds = [type(action) for action in counted]
    assert [a.reason for a in counted if isinstance(a, actions.Yielded)] == ["timeslice"]
    assert [a.residence for a in counted if isinstance(a, actions.Resumed)] == ["parked"]
    assert kinds.count(actions.CountTokens) == 1


def test_what_waits_on_its_worker_for_cells_is_not_starved_by_small_requests() -> None:
    world = make_world()
    worker = world.add_worker("w1", slots=3, kv_cells=100)
    world.settle()
    submit(world, "small", prompt=10, max_tokens=21)
    big = submit(world, "big", prompt=30, max_tokens=30)
    urgent = submit(world, "urgent", priority=9, prompt=10, max_tokens=3)
    assert state_of(world, big) is JobState.PARKED
    later = submit(world, "later", prompt=10, max_tokens=21)
    assert worker.residents.keys() >= {big, urgent}
    assert state_of(world, later) is JobState.QUEUED, "it would take the cells that the big one waits for"
    world.live(3)
    assert urgent not in worker.residents
    assert state_of(world, big) is JobState.RUNNING
    finish(world)


def test_a_parked_request_resumes_in_a_free_slot_however_many_wait_for_others() -> None:
    world = make_world(move_after_s=1000.0, ordinary_share=0.0)
    world.add_worker("w1", kv_cells=400)
    world.settle()
    first, second = submit(world, "first"), submit(world, "second")
    other = world.add_worker("w2", slots=1, kv_cells=400)
    world.settle()
    third = submit(world, "third")
    for i in range(3):
        submit(world, f"urgent{i}", priority=9)
    assert [state_of(world, key) for key in (first, second, third)] == [JobState.PARKED] * 3
    (urgent,) = [key for key, sequence in other.residents.items() if sequence.is_running]
    world.cancel(urgent)
    world.settle()
    assert state_of(world, third) is JobState.RUNNING
    finish(world)


def test_a_request_that_runs_in_the_slot_of_another_is_descheduled_and_resumes() -> None:
    world = make_world()
    worker = world.add_worker("w1", kv_cells=200)
    world.settle()
    key = submit(world, "r1")
    worker.step()
    worker.residents[key].slot = 1  # the table has it in the other one
    other = submit(world, "r2")
    sequences = [worker.residents[name] for name in (key, other)]
    assert [sequence.is_running for sequence in sequences] == [True, True]
    assert worker.residents[key].run == 1
    finish(world)
    assert epochs(world, key) == {1}


def test_a_message_of_an_earlier_run_changes_nothing() -> None:
    world = make_world(SLICING)
    worker = world.add_worker("w1", slots=1)
    world.settle()
    key = submit(world, "r1", max_tokens=9)
    for _ in range(3):
        worker.step()
    late = world.network[-1]
    before = worker.status()
    world.settle()
    assert worker.residents[key].run == 1
    world.do(late() or [])  # that its first run ended
    world.do(world.core.on_heartbeat(before, world.now))
    world.settle()
    assert state_of(world, key) is JobState.RUNNING
    end = worker_pb2.Deschedule(tenant="acme", request_id="r1", epoch=1, run=0)
    worker.on_command(worker_pb2.WorkerCommand(deschedule=end, term=world.core.term))
    assert worker.residents[key].is_running
    finish(world)


def test_a_request_that_runs_on_although_it_is_to_wait_is_told_again() -> None:
    world = make_world()
    worker = world.add_worker("w1", slots=1, kv_cells=200)
    world.settle()
    low = submit(world, "low")
    urgent = world.submit(make_request("urgent", at=world.now, priority=9, max_tokens=30))
    world.deliver()
    (batch_id,) = world.in_flight
    world.network.clear()  # the batch is lost, and so is what asks for its tokens
    world.time_out(batch_id)
    world.network.clear()
    worker.step()
    worker.beat()
    world.deliver()
    assert [command.WhichOneof("command") for _, command in world.commands][-1] == "deschedule"
    world.settle()
    assert not worker.residents[low].is_running
    assert state_of(world, low) is JobState.PARKED
    world.live(200)
    assert {world.read(key).outcome for key in (low, urgent)} == {"length"}
    assert epochs(world, low) == {1}


def test_a_refused_request_waits_on_from_when_it_was_descheduled() -> None:
    world = make_world()
    worker = world.add_worker("w1", slots=1, kv_cells=200)
    world.settle()
    low = submit(world, "low")
    urgent = submit(world, "urgent", priority=9, max_tokens=1)
    parked_s = world.now
    world.now += 1.0
    worker.term = 99  # it refuses, whatever the table says
    world.cancel(urgent)
    world.settle()
    assert state_of(world, low) is JobState.PARKED
    assert worker.batches[-1].phase == worker_pb2.PHASE_DECODE
    world.now += 1.0
    worker.term = world.core.term
    worker.beat()
    world.settle()
    assert state_of(world, low) is JobState.RUNNING
    assert world.core.jobs[low].stay.waited_s == pytest.approx(world.now - parked_s)
    finish(world)
