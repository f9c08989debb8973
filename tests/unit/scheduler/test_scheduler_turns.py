"""Turns that end before their request does: preemption, timeslices, memory, moves and draining."""

from __future__ import annotations

from collections import Counter

import pytest
from harness.scheduler_world import PARKED, SWAPPED, SimWorker, World, make_request

from inferflux.common import kv_cells
from inferflux.common.errors import NotFound
from inferflux.scheduler.core import actions
from inferflux.scheduler.core.fairness import FairnessSettings
from inferflux.scheduler.core.jobs import Attempt, JobState, RequestKey
from inferflux.scheduler.core.limits import Limits
from inferflux.scheduler.core.urgent import URGENT_LEAD_S
from inferflux.v1 import worker_pb2

PREEMPTING = FairnessSettings(enable_preemption=True, high_priority_threshold=5)
SLICING = FairnessSettings(max_timeslice_tokens=3)


def make_world(
    fairness: FairnessSettings = PREEMPTING, *, ordinary_share: float = 0.25, **limits: float
) -> World:
    bounds = Limits(settle_s=0.0, clock_skew_s=-1e6, **limits)  # type: ignore[arg-type]
    world = World(bounds, fairness=fairness, ordinary_share=ordinary_share)
    world.pass_time(0.1)
    return world


def submit(
    world: World,
    request_id: str,
    *,
    priority: int = 0,
    max_tokens: int = 20,
    prompt: int = 4,
    deadline: float = 0.0,
) -> RequestKey:
    key = world.submit(
        make_request(
            request_id,
            at=world.now,
            priority=priority,
            max_tokens=max_tokens,
            prompt=prompt,
            deadline=deadline,
        )
    )
    world.settle()
    return key


def state_of(world: World, key: RequestKey) -> JobState:
    return world.core.jobs[key].state


def finish(world: World) -> None:
    world.live(200)
    world.check()
    world.check_quiet()


def epochs(world: World, key: RequestKey) -> set[int]:
    return {chunk.epoch for chunk in world.clients[key]}


def test_an_urgent_request_takes_the_turn_of_the_least_urgent_which_goes_on_where_it_stopped() -> None:
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
def test_nobody_gives_way_unless_it_is_enabled_and_the_request_is_urgent(
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


def test_on_a_single_slot_a_stream_of_urgent_requests_starves_nobody_beyond_their_lead() -> None:
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


def test_nobody_who_waited_for_long_goes_before_an_urgent_request_where_others_have_their_share() -> None:
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


def test_ordinary_requests_take_turns_and_urgent_ones_are_not_sliced() -> None:
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


def test_a_slice_with_nobody_waiting_goes_on_at_once() -> None:
    world = make_world(SLICING)
    worker = world.add_worker("w1", slots=1)
    world.settle()
    key = submit(world, "alone", max_tokens=7)
    for _ in range(3):
        worker.step()
    world.settle()
    assert worker.residents[key].is_running
    finish(world)


def test_what_waits_for_its_turn_goes_on_elsewhere_once_that_is_sooner() -> None:
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


def test_who_is_evicted_the_worker_decides_and_the_table_follows_its_reports() -> None:
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
    monkeypatch.setattr(kv_cells, "GROWTH", 4)  # both are let in, and grow beyond the cache
    world = make_world(FairnessSettings())
    worker = world.add_worker("w1", slots=4, kv_cells=40)
    world.settle()
    keys = [submit(world, f"r{i}", max_tokens=30, prompt=2) for i in range(2)]
    worker.beat()
    finish(world)
    assert all(len(world.read(key).token_ids) == 30 for key in keys)
    assert any(batch.phase == worker_pb2.PHASE_DECODE for batch in worker.batches)


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
        job = world.core.on_reader_joined("g2", Attempt(key), world.now)
        assert job is not None
        assert job.key == key
    finish(world)
    assert world.core.on_reader_joined("g2", Attempt(queued), world.now) is None


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


def test_what_gets_no_further_is_given_up_there_and_goes_on_elsewhere() -> None:
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


def drain(world: World, worker_id: str, **how: object) -> None:
    world.do(world.core.drain(worker_id, now=world.now, **how))  # type: ignore[arg-type]
    world.settle()


def test_a_draining_worker_finishes_what_it_has_and_takes_nothing_new() -> None:
    world = make_world(FairnessSettings(True, 5, 3))
    worker = world.add_worker("w1", slots=1, kv_cells=200)
    world.settle()
    low = submit(world, "low")
    submit(world, "urgent", priority=9)
    drain(world, "w1")
    waiting = submit(world, "waiting", priority=3)
    assert world.core.drain_progress("w1").residents == 2
    for _ in range(40):
        worker.step()
        worker.beat()
        world.settle()
        world.pass_time(0.1)
    assert world.read(low).outcome == "length"
    assert state_of(world, waiting) is JobState.QUEUED
    assert world.core.drain_progress("w1").is_drained
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
    assert world.core.drain_progress("w1").is_drained
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


def test_an_idle_worker_relieves_one_whose_requests_take_turns() -> None:
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


def test_only_a_worker_that_lives_can_be_drained() -> None:
    world = make_world()
    with pytest.raises(NotFound, match="worker_id: no worker w9"):
        world.core.drain("w9", now=world.now)


def test_a_worker_that_follows_another_leader_takes_nothing() -> None:
    world = make_world()
    worker = world.add_worker("w1")
    worker.term = 99
    world.settle()
    key = submit(world, "r1")
    assert state_of(world, key) is JobState.QUEUED
    assert not worker.residents


def test_more_than_may_wait_are_refused_and_told_when_to_try_again() -> None:
    world = make_world(max_queued=3, max_queued_per_tenant=2)
    keys = [submit(world, f"r{i}") for i in range(3)]
    assert world.read(keys[2]).outcome == "TENANT_QUEUE_FULL"
    other = world.submit(make_request("r9", tenant="bolt", at=world.now))
    last = world.submit(make_request("r10", tenant="bolt", at=world.now))
    world.settle()
    assert state_of(world, other) is JobState.QUEUED
    assert world.read(last).outcome == "QUEUE_FULL"
    assert world.clients[last][-1].failed.retry_delay_ms > 0
    world.add_worker("w1")
    finish(world)


def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    world = make_world()
    worker = world.add_worker("w1", kv_cells=200)
    world.settle()
    status = worker.status()
    status.prefill_tokens_per_s = 10.0
    world.do(world.core.on_heartbeat(status, world.now))
    hopeless = submit(world, "hopeless", prompt=40, deadline=world.now + 1.0)
    assert world.read(hopeless).outcome == "DEADLINE_UNREACHABLE"
    assert state_of(world, submit(world, "fine", prompt=40, deadline=world.now + 30.0)) is JobState.RUNNING
    finish(world)


def test_a_waiting_request_is_told_again_when_its_position_changed_much() -> None:
    world = make_world(FairnessSettings())
    worker = world.add_worker("w1", slots=1)
    world.settle()
    keys = [submit(world, f"r{i}", max_tokens=2) for i in range(9)]
    for _ in range(16):
        worker.step()
        worker.beat()
        world.settle()
        world.pass_time(1.0)
    positions = [c.queued.position for c in world.clients[keys[-1]] if c.HasField("queued")]
    assert positions[0] == 7
    assert positions == sorted(positions, reverse=True)
    assert len(positions) >= 3
    finish(world)


def test_who_yields_and_goes_on_is_counted() -> None:
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


def test_a_worker_that_is_not_there_any_more_is_given_up_before_its_silence_says_so() -> None:
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
    assert world.core.jobs[key].worker_deaths == 1
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
    assert world.core.jobs[urgent].refusals == 0
    finish(world)


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
    assert world.core.jobs[low].waited_there_s == pytest.approx(world.now - parked_s)
    finish(world)
