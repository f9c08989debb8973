"""What the core does, case by case, in a world where every message arrives."""

from __future__ import annotations

import pytest
from harness.scheduler_world import World, key_of, make_request, still_held

from inferflux.common.contract.errors import InvalidArgument
from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.jobs import Attempt, JobState, RequestKey
from inferflux.scheduler.core.types.limits import Limits
from inferflux.v1 import generation_pb2, scheduler_pb2, worker_pb2


@pytest.fixture
def world() -> World:
    world = World()
    world.pass_time(0.1)
    return world


def submit(
    world: World, request_id: str, *, prompt: int = 4, max_tokens: int = 4, attempt: str = ""
) -> RequestKey:
    return world.submit(
        make_request(request_id, at=world.now, prompt=prompt, max_tokens=max_tokens, attempt=attempt)
    )


def test_jobs_that_arrive_together_travel_in_one_batch_least_loaded_worker_first(world: World) -> None:
    big, small = (
        world.add_worker("big", slots=4, kv_cells=400),
        world.add_worker("small", slots=4, kv_cells=400),
    )
    world.settle()
    first = submit(world, "r1", prompt=40)
    world.settle()
    busy = big if first in big.residents else small
    idle = small if busy is big else big
    submit(world, "r2")
    submit(world, "r3")
    for _ in range(2):  # both arrive before the plan is made
        world.core.on_job(*_next_job(world))
    world.network.clear()
    world.do([])
    world.settle()
    assert [len(batch.items) for batch in idle.batches] == [2]
    assert len(busy.residents) == 1


def _next_job(world: World) -> tuple[scheduler_pb2.InferenceRequest, int, int, float]:
    sequence = next(s for s in world.jobs if s not in {j.sequence for j in world.core.jobs.values()})
    return world.jobs[sequence], sequence, sequence, world.now


def test_batches_are_cut_at_their_token_limit() -> None:
    world = World(Limits(settle_s=0.0, max_batch_tokens=10, max_batch_size=3))
    world.pass_time(0.1)
    for i in range(8):
        submit(world, f"r{i}", prompt=12 if i == 0 else 3)
    world.settle()
    worker = world.add_worker("w1", slots=8, kv_cells=400)
    world.settle()
    assert [len(batch.items) for batch in worker.batches] == [1, 3, 3, 1]


def test_no_more_is_placed_than_slots_and_cells_allow(world: World) -> None:
    worker = world.add_worker("w1", slots=4, kv_cells=20)
    for i in range(4):
        submit(world, f"r{i}", prompt=4, max_tokens=4)  # 7 cells: the last token's is never written
    world.settle()
    assert len(worker.residents) == 2
    world.live(20)
    world.check_quiet()


def test_a_job_that_fits_nowhere_now_is_not_starved_by_small_ones(world: World) -> None:
    worker = world.add_worker("w1", slots=4, kv_cells=20)
    submit(world, "small1", prompt=6, max_tokens=4)
    big = submit(world, "big", prompt=16, max_tokens=4)
    small = submit(world, "small2", prompt=2, max_tokens=2)
    world.settle()
    assert {k.request_id for k in worker.residents} == {"small1"}
    for _ in range(4):
        worker.step()
    world.settle()
    assert set(worker.residents) == {big}
    assert world.core.jobs[small].state is JobState.QUEUED


def test_a_request_too_large_for_every_worker_is_failed_at_once(world: World) -> None:
    world.add_worker("w1", kv_cells=20)
    world.settle()
    key = submit(world, "r1", prompt=30, max_tokens=4)
    world.settle()
    failed = world.clients[key][-1].failed
    assert (failed.code, failed.reason) == (3, "REQUEST_TOO_LARGE")
    assert "20 cells" in failed.message
    world.check_quiet()


def test_two_tenants_may_use_the_same_id_on_one_worker_but_not_in_one_batch(world: World) -> None:
    worker = world.add_worker("w1", slots=4, kv_cells=100)
    world.submit(make_request("same", tenant="acme", at=world.now))
    world.submit(make_request("same", tenant="bolt", at=world.now))
    world.settle()
    assert len(worker.residents) == 2
    assert [len(batch.items) for batch in worker.batches] == [1, 1]
    world.live(20)
    world.check_quiet()
    assert sorted(world.acks.values()) == [["length"], ["length"]]


def test_a_refusal_puts_the_job_back_and_spares_the_worker_until_it_speaks(world: World) -> None:
    worker = world.add_worker("w1")
    world.settle()
    worker.state = scheduler_pb2.WORKER_STATE_DRAINING  # it has not said so yet
    key = submit(world, "r1")
    world.settle()
    assert world.core.jobs[key].state is JobState.QUEUED
    assert (world.core.jobs[key].epoch, len(worker.batches)) == (1, 1)
    worker.state = scheduler_pb2.WORKER_STATE_READY
    worker.beat()
    world.settle()
    assert key in worker.residents


def test_an_unanswered_batch_is_dropped_and_retried_in_the_next_epoch(world: World) -> None:
    worker = world.add_worker("w1")
    world.settle()
    key = submit(world, "r1")
    world.deliver()  # the job; the batch is on its way
    (batch_id,) = world.in_flight
    world.time_out(batch_id)
    assert [c.drop.epoch for _, c in world.commands] == [1]
    world.settle()
    worker.beat()
    world.settle()
    assert worker.residents[key].epoch == 2


def test_a_silent_worker_is_dead_and_its_request_continues_elsewhere(world: World) -> None:
    first = world.add_worker("w1")
    key = submit(world, "r1", max_tokens=5)
    world.settle()
    first.step()
    first.step()
    del world.workers["w1"]
    second = world.add_worker("w2")
    world.settle()
    for _ in range(7):
        world.pass_time(0.5)
        second.beat()
        world.settle()
    assert list(second.residents[key].request.generated_token_ids) == [0, 1]
    assert second.residents[key].epoch == 2
    world.live(10)
    world.check_quiet()


def test_workers_are_not_blamed_for_the_absence_of_the_bus(world: World) -> None:
    worker = world.add_worker("w1")
    key = submit(world, "r1")
    world.settle()
    world.core.on_connection(False, world.now)
    for _ in range(40):
        world.pass_time(0.5)
    world.core.on_connection(True, world.now)
    for _ in range(10):  # longer than a silent worker lives, for it has to reconnect itself
        world.pass_time(0.5)
    worker.beat()
    world.settle()
    assert world.core.jobs[key].state is JobState.RUNNING
    assert world.core.jobs[key].epoch == 1


def test_a_process_that_stood_still_does_not_blame_workers_either(world: World) -> None:
    world.add_worker("w1")
    key = submit(world, "r1")
    world.settle()
    world.pass_time(60.0)
    assert world.core.jobs[key].state is JobState.RUNNING


def test_a_restarted_workers_requests_are_retried_at_once(world: World) -> None:
    world.add_worker("w1")
    key = submit(world, "r1")
    world.settle()
    again = world.add_worker("w1")
    world.settle()
    assert again.residents[key].epoch == 2


def test_a_vanished_request_is_retried_after_two_heartbeats_without_it(world: World) -> None:
    worker = world.add_worker("w1")
    key = submit(world, "r1")
    world.settle()
    worker.residents.clear()
    worker.beat()
    world.settle()
    assert world.core.jobs[key].epoch == 1
    worker.beat()
    world.settle()
    assert worker.residents[key].epoch == 2


def test_a_request_that_kills_two_engines_the_second_one_alone_is_failed(world: World) -> None:
    worker = world.add_worker("w1")
    key = submit(world, "r1")
    world.settle()
    for _ in range(2):
        worker.die_engine()
        world.settle()
        worker.beat()
        world.settle()
    failed = world.clients[key][-1].failed
    assert (failed.reason, failed.code) == ("POISON_REQUEST", InvalidArgument.code)
    world.check_quiet()


def test_retries_are_limited_but_a_worker_leaving_in_order_costs_none(world: World) -> None:
    key = submit(world, "r1")
    world.settle()
    for _ in range(8):
        worker = world.add_worker("w1")
        world.settle()
        assert key in worker.residents
        del world.workers["w1"]
        worker.leave()
        world.settle()
    for losses in range(world.limits.max_retries + 1):
        world.add_worker("w1")
        world.settle()
        assert key in world.core.jobs, losses
    world.add_worker("w1")
    world.settle()
    assert world.clients[key][-1].failed.reason == "RETRIES_EXHAUSTED"


def test_a_request_whose_tokens_are_all_out_is_finished_without_a_worker(world: World) -> None:
    worker = world.add_worker("w1")
    key = submit(world, "r1", max_tokens=3)
    world.settle()
    worker.step()
    worker.step()
    last = worker.chunk(worker.residents[key], offset=2)  # the engine died between the last token and the end
    last.token_ids.append(2)
    world.publish(key, last)
    worker.die_engine()
    world.settle()
    worker.beat()
    world.settle()
    chunk = world.clients[key][-1]
    assert (chunk.finished.reason, chunk.offset) == (generation_pb2.FINISH_REASON_LENGTH, 3)
    world.check_quiet()


def test_a_chunk_that_ends_a_chat_has_the_format_of_its_answer(world: World) -> None:
    chat = make_request("r1", at=world.now, attempt="a1")
    chat.answer_format.reasoning = generation_pb2.REASONING_FORMAT_OPEN
    keys = world.submit(chat), submit(world, "r2", attempt="a1")
    world.settle()
    for key in keys:
        world.cancel(key, "a1")
    world.settle()
    with_format, without = (world.clients[key][-1] for key in keys)
    assert with_format.answer_format == chat.answer_format
    assert not without.HasField("answer_format")


def test_a_cancel_that_overtakes_its_job_still_cancels_it(world: World) -> None:
    worker = world.add_worker("w1")
    world.settle()
    was_found, _ = world.core.cancels.on_cancel(Attempt(RequestKey("acme", "r1"), "a1"), world.now)
    assert was_found is False
    key = submit(world, "r1", attempt="a1")
    world.settle()
    assert world.read(key).outcome == "cancelled"
    assert worker.batches == []
    world.check_quiet()


def test_a_cancel_while_the_batch_is_on_its_way_ends_the_request_once(world: World) -> None:
    world.add_worker("w1")
    world.settle()
    key = submit(world, "r1", max_tokens=20)
    world.deliver()  # the job: the batch is under way, and the worker does not receive the notice
    was_found, todo = world.core.cancels.on_cancel(Attempt(key), world.now)
    assert (was_found, todo) == (True, [])
    world.settle()  # no heartbeat is needed: the worker is told when it has accepted
    assert world.read(key).outcome == "cancelled"
    world.check_quiet()


def test_a_job_that_comes_again_is_run_once(world: World) -> None:
    worker = world.add_worker("w1")
    submit(world, "r1")
    world.deliver_job(1)
    world.settle()
    assert len(worker.residents) == 1
    world.deliver_job(1)
    world.live(6)
    assert [len(batch.items) for batch in worker.batches] == [1]
    assert world.acks == {1: ["length"]}


def test_a_job_that_comes_again_after_its_end_is_acknowledged_and_not_run(world: World) -> None:
    world.add_worker("w1")
    key = submit(world, "r1")
    world.live(6)
    assert world.acks == {1: ["length"]}
    again = world.core.on_job(world.requests[key], "again", 1, world.now)
    assert again == [actions.Ack(key, "again", world.requests[key].model, "duplicate")]
    assert key not in world.core.jobs


def test_held_jobs_are_said_to_be_held_about_every_twenty_seconds() -> None:
    world = World(Limits(settle_s=0.0, no_worker_timeout_s=1000.0))
    submit(world, "r1")
    world.settle()
    for _ in range(900):
        world.pass_time(0.1)
    assert world.holds in (4, 5)


def test_a_request_that_runs_without_a_job_is_dropped_after_a_grace(world: World) -> None:
    worker = world.add_worker("w1")
    key = submit(world, "r1", max_tokens=20)
    world.settle()
    world.jobs.clear()
    world.restart_scheduler()
    for _ in range(8):
        worker.beat()
        world.pass_time(1.0)
        world.settle()
    assert key in worker.residents
    for _ in range(6):
        worker.beat()
        world.pass_time(1.0)
        world.settle()
    assert worker.residents == {}


def test_a_request_waits_ten_seconds_for_a_worker_of_its_model_then_fails(world: World) -> None:
    key = submit(world, "r1")
    world.settle()
    for _ in range(19):
        world.pass_time(0.5)
    assert not world.read(key).outcome
    for _ in range(4):
        world.pass_time(0.5)
    assert world.read(key).outcome == "NO_WORKER"
    world.check_quiet()
    assert world.core.queue.models == {}


def test_a_worker_that_missed_a_cancel_notice_is_told_again(world: World) -> None:
    worker = world.add_worker("w1")
    key = submit(world, "r1", max_tokens=20)
    world.settle()
    world.core.cancels.on_cancel(Attempt(key), world.now)
    worker.beat()
    world.settle()
    assert world.read(key).outcome == "cancelled"
    world.check_quiet()


def test_a_terminal_event_that_only_readers_received_is_found_in_the_replay(world: World) -> None:
    first = world.add_worker("w1")
    key = submit(world, "r1", max_tokens=2)
    world.settle()
    first.step()
    first.step()
    world.network.clear()  # the event is lost, and the worker with it
    del world.workers["w1"]
    second = world.add_worker("w2")
    for _ in range(8):
        second.beat()
        world.settle()
        world.pass_time(0.5)
    assert world.acks == {1: ["length"]}
    assert second.batches == []
    assert len(world.clients[key]) == 3


def test_a_request_goes_to_the_worker_with_room_not_to_the_less_loaded_one(world: World) -> None:
    tight = world.add_worker("tight", slots=4, kv_cells=20)
    world.settle()
    submit(world, "r1", prompt=4, max_tokens=4)
    world.settle()
    roomy = world.add_worker("roomy", slots=4, kv_cells=100)
    world.settle()
    for i in range(2, 5):
        submit(world, f"r{i}", prompt=8, max_tokens=8)
        world.settle()
    assert (len(tight.batches), len(roomy.residents)) == (1, 3)


def test_an_adopted_request_has_ended_only_when_readers_saw_it_end(world: World) -> None:
    stale = world.add_worker("w1")
    key = submit(world, "r1", max_tokens=2)
    world.settle()
    later = stale.chunk(stale.residents[key], offset=0)
    later.epoch = 5  # of a worker that died since, with the scheduler that knew of it
    world.publish(key, later)
    world.limits = Limits(settle_s=0.0)
    world.restart_scheduler()
    stale.beat()
    world.settle()
    assert world.core.jobs[key].replay.is_adopted
    world.live(10)
    assert world.read(key).outcome == "length"
    assert world.read(key).epoch > 5
    world.check_quiet()


def test_until_workers_have_reported_a_new_scheduler_ends_nothing_that_may_run(world: World) -> None:
    worker = world.add_worker("w1")
    key = submit(world, "r1", max_tokens=20)
    world.settle()
    world.limits = Limits(settle_s=1.2)
    world.restart_scheduler()
    world.settle()
    world.do(world.core.cancels.on_cancel(Attempt(key), world.now)[1])  # the worker has not received it yet
    world.settle()
    assert not world.read(key).outcome
    worker.beat()
    world.settle()
    worker.beat()
    world.settle()
    assert [chunk.epoch for chunk in world.clients[key] if chunk.HasField("finished")] == [1]
    world.check_quiet()


def test_a_slot_in_which_an_unowned_request_runs_is_not_free_when_its_own_leaves(world: World) -> None:
    world.add_worker("w1", slots=1)
    key = submit(world, "r1")
    world.settle()
    view = world.core.table.workers["w1"]
    status = world.workers["w1"].status()
    runs = scheduler_pb2.RESIDENCE_RUNNING
    status.residents.add(tenant="bolt", request_id="other", epoch=1, residence=runs, slot=0)
    view.reconcile(status, world.now, 2)
    view.release(key)
    assert view.free_slots == 0
    view.reconcile(scheduler_pb2.WorkerStatus(slots=1, kv_cells=32), world.now, 2)
    assert view.free_slots == 1


def test_what_runs_is_not_dropped_while_jobs_of_an_earlier_scheduler_still_come() -> None:
    world = World(Limits(settle_s=0.0, unowned_grace_s=3.0))
    world.pass_time(0.1)
    worker = world.add_worker("w1", slots=1, kv_cells=400)
    key = submit(world, "first", max_tokens=8)
    world.settle()
    for i in range(12):
        submit(world, f"r{i}", max_tokens=1)
    world.settle()
    jobs = dict(world.jobs)
    world.jobs = {}  # the new scheduler is given none by itself
    world.restart_scheduler()
    for sequence in sorted(jobs, reverse=True):  # that of what runs comes last, after four times the grace
        world.jobs[sequence] = jobs[sequence]
        world.deliver_job(sequence)
        worker.beat()
        world.settle()
        world.pass_time(1.0)
    assert not [c for _, c in world.commands if c.HasField("drop")]
    job = world.core.jobs[key]
    assert (job.state, job.epoch) == (JobState.RUNNING, worker.batches[0].items[0].request.epoch)
    world.live(300)
    assert len([b for b in worker.batches if key in map(key_of, (i.request for i in b.items))]) == 1
    world.check_quiet()


def test_what_runs_and_has_no_job_is_dropped_once_no_more_come() -> None:
    world = World(Limits(settle_s=0.0, unowned_grace_s=3.0))
    world.pass_time(0.1)
    worker = world.add_worker("w1", slots=1, kv_cells=400)
    submit(world, "first", max_tokens=8)
    world.settle()
    world.jobs = {}
    world.restart_scheduler()
    for _ in range(4):
        worker.beat()
        world.settle()
        world.pass_time(1.0)
    assert [(w, c.drop.request_id) for w, c in world.commands if c.HasField("drop")] == [("w1", "first")]


def test_jobs_that_have_ended_do_not_stay_in_memory_until_their_deadlines() -> None:
    world = World()
    world.core.on_tick(world.now)
    requests = (make_request(f"r{i}", at=1000.0, deadline=100_000.0) for i in range(1000))
    assert still_held(world, requests) < 200
    assert not world.core.jobs


def test_models_that_no_worker_serves_are_forgotten_with_their_requests() -> None:
    world = World(Limits(settle_s=0.0, no_worker_timeout_s=1.0))
    world.pass_time(0.1)
    for i in range(5):
        world.submit(make_request(f"r{i}", at=world.now, model=f"model-{i}"))
    world.settle()
    for _ in range(4):
        world.pass_time(0.5)
    assert not world.core.jobs
    assert not world.core.queue.models
    assert not world.core._unserved._since_s
    assert not world.core._unserved._look_again_s


def test_while_nothing_can_be_sent_jobs_are_not_said_to_be_held() -> None:
    world = World(Limits(settle_s=0.0, no_worker_timeout_s=1000.0))
    submit(world, "r1")
    world.settle()
    world.core.on_connection(False, world.now)
    for _ in range(100):
        world.pass_time(1.0)
    assert world.holds == 0
    world.core.on_connection(True, world.now)
    for _ in range(25):
        world.pass_time(0.9)
    assert world.holds >= 1


def test_a_request_for_a_large_worker_alone_does_not_hold_up_those_for_small_ones(world: World) -> None:
    small, large = world.add_worker("small", kv_cells=32), world.add_worker("large", kv_cells=64)
    world.settle()
    large.state = scheduler_pb2.WORKER_STATE_LOADING
    large.beat()
    world.settle()
    huge = submit(world, "huge", prompt=40)
    fits_both = submit(world, "fits both")
    world.settle()
    assert world.core.jobs[huge].state is JobState.QUEUED
    assert fits_both in small.residents
    large.state = scheduler_pb2.WORKER_STATE_READY
    large.beat()
    world.settle()
    assert huge in large.residents
    world.live(30)
    world.check_quiet()


def test_workers_that_a_waiting_request_fits_are_kept_for_it_and_others_are_not(world: World) -> None:
    large, small = world.add_worker("large", kv_cells=60), world.add_worker("small", kv_cells=20)
    world.settle()
    first = submit(world, "first", prompt=40)
    world.settle()
    second = submit(world, "second", prompt=30)
    third = submit(world, "third", prompt=10)
    fourth = submit(world, "fourth", prompt=10)
    world.settle()
    assert list(large.residents) == [first], "the second waits for its cells"
    assert list(small.residents) == [third]
    assert [world.core.jobs[key].state for key in (second, fourth)] == [JobState.QUEUED] * 2
    world.live(30)
    world.check_quiet()


def test_a_refusal_for_a_reason_that_is_not_known_here_is_one_like_any_other(world: World) -> None:
    worker = world.add_worker("w1")
    world.settle()
    key = submit(world, "r1")
    world.deliver()
    (batch_id,) = world.in_flight
    world.network.clear()
    answer = worker_pb2.BatchAccepted(batch_id=batch_id)
    answer.refused.add(request_id="r1", reason=99)
    (counted,) = world.core.on_batch_answer(answer, world.now)
    assert isinstance(counted, actions.CountRefusal)
    assert (counted.key, counted.worker_id, counted.reason) == (key, "w1", "unknown")
    assert world.core.jobs[key].state is JobState.QUEUED
    assert not worker.residents


def test_no_time_tells_which_jobs_another_scheduler_may_have_had(world: World) -> None:
    """By another clock, that may be before or after this one started."""
    for place, at in enumerate((world.now - 1e6, world.now, world.now + 1e6)):
        for is_inherited in (True, False):
            request = make_request(f"r{place}-{is_inherited}", at=at)
            world.core.on_job(request, place, 2 * place + is_inherited, world.now, is_inherited=is_inherited)
    assert [job.replay.is_inherited for job in world.core.jobs.values()] == [True, False] * 3
