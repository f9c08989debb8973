"""What the scheduler may count on, of every worker: with llama.cpp's engine, with the null engine, in the
scheduler's tests and in the simulator the same messages have the same answers, events, tokens and epochs.

A step of the simulator that runs when a message comes still ends, and gives its tokens.
"""

from __future__ import annotations

import time

import pytest
from harness.contract_workers import CELLS, WORKERS, Told, WithLlama, WithNull
from harness.worker import batch_item, resume_item

from inferflux.v1 import generation_pb2, scheduler_pb2, worker_pb2

RUNNING, PARKED = scheduler_pb2.RESIDENCE_RUNNING, scheduler_pb2.RESIDENCE_PARKED
SWAPPED = scheduler_pb2.RESIDENCE_SWAPPED
TIMESLICE, PREEMPTED = scheduler_pb2.YIELD_REASON_TIMESLICE, scheduler_pb2.YIELD_REASON_PREEMPTED
MEMORY = scheduler_pb2.YIELD_REASON_MEMORY


@pytest.fixture(params=WORKERS)
def worker(request: pytest.FixtureRequest) -> Told:
    return WORKERS[request.param]()


def item(
    request_id: str,
    *,
    slot: int = 0,
    epoch: int = 1,
    prompt: int = 5,
    max_tokens: int = 10,
    urgency_key: float = 0.0,
    budget: int = 0,
    attempt: str = "",
) -> worker_pb2.BatchItem:
    tokens = [(7 * i + sum(request_id.encode())) % 40 for i in range(prompt)]
    made = batch_item(
        request_id,
        model="m",
        slot=slot,
        epoch=epoch,
        prompt=tokens,
        max_tokens=max_tokens,
        urgency_key=urgency_key,
        token_budget=budget,
    )
    made.request.attempt_id = attempt
    return made


def resume(
    worker: Told, request_id: str, *, run: int = 1, slot: int = 0, epoch: int = 1, budget: int = 0
) -> worker_pb2.BatchAccepted:
    again = resume_item(request_id, slot=slot, epoch=epoch, token_budget=budget)
    again.request.model, again.run = "m", run
    return worker.submit(again, phase=worker_pb2.PHASE_DECODE)


def end_of(request_id: str, *, run: int = 0, epoch: int = 1) -> worker_pb2.Deschedule:
    return worker_pb2.Deschedule(tenant="t", request_id=request_id, epoch=epoch, run=run)


def preempt(worker: Told, request_id: str, *items: worker_pb2.BatchItem, run: int = 0) -> None:
    """End a run of a request, for others."""
    assert not worker.submit(*items, deschedule=(end_of(request_id, run=run),)).refused
    worker.settle()


def refusals(answer: worker_pb2.BatchAccepted) -> list[int]:
    return [refused.reason for refused in answer.refused]


def told(worker: Told) -> list[tuple[object, ...]]:
    """Its events: who and epoch, of a yield run, reason, residence, tokens; of an end how and tokens."""
    found: list[tuple[object, ...]] = []
    for event in worker.events():
        if event.HasField("request_yielded"):
            one = event.request_yielded
            found.append(
                (one.request_id, one.epoch, one.run, one.reason, one.residence, one.generated_tokens)
            )
        else:
            ended = event.request_finished
            found.append((ended.request_id, ended.epoch, ended.outcome, ended.usage.completion_tokens))
    return found


def stream(worker: Told, request_id: str) -> list[tuple[int, int, int] | tuple[int, str]]:
    """Each of its tokens with epoch and place, and how each epoch ended."""
    found: list[tuple[int, int, int] | tuple[int, str]] = []
    for chunk in worker.chunks(request_id):
        found += [(chunk.epoch, chunk.offset + i, token) for i, token in enumerate(chunk.token_ids)]
        if chunk.HasField("finished"):
            reason = generation_pb2.FinishReason.Name(chunk.finished.reason)
            found.append((chunk.epoch, reason.removeprefix("FINISH_REASON_").lower()))
        elif chunk.HasField("failed"):
            found.append((chunk.epoch, chunk.failed.reason))
    return found


def whole(worker: Told, wanted: worker_pb2.BatchItem, first: int = 0) -> list[object]:
    """The stream of a request from a token on: each of its own tokens once, and its end."""
    epoch = wanted.request.epoch
    tokens = list(enumerate(worker.answer(wanted)))
    return [*((epoch, place, token) for place, token in tokens[first:]), (epoch, "length")]


def residents(worker: Told) -> dict[str, tuple[int, int, int]]:
    """Where each resident is, its epoch and run."""
    return {r.request_id: (r.residence, r.epoch, r.run) for r in worker.status().residents}


def until(worker: Told, request_id: str, tokens: int) -> None:
    for _ in range(100):
        if len(stream(worker, request_id)) >= tokens:
            return
        worker.settle()
    raise AssertionError("it never came so far")


def run_out(worker: Told) -> None:
    """Let everything that runs end."""
    for _ in range(100):
        worker.settle()
        assert worker.status().kv_cells_used <= CELLS
        if all(residence in (PARKED, SWAPPED) for residence, *_ in residents(worker).values()):
            return
    raise AssertionError("a request never ended")


def test_requests_run_side_by_side_to_their_ends(worker: Told) -> None:
    first, second = item("a"), item("b", slot=1, max_tokens=12)
    assert list(worker.submit(first, second).accepted_request_ids) == ["a", "b"]
    worker.settle()
    assert residents(worker) == {"a": (RUNNING, 1, 0), "b": (RUNNING, 1, 0)}
    run_out(worker)
    assert stream(worker, "a") == whole(worker, first)
    assert stream(worker, "b") == whole(worker, second)
    assert told(worker) == [("a", 1, "length", 10), ("b", 1, "length", 12)]
    assert (residents(worker), worker.status().kv_cells_reserved) == ({}, 0)
    assert [(e.request_id, e.epoch) for e in worker.status().finished] == [("a", 1), ("b", 1)]


def test_a_retry_goes_on_after_the_tokens_that_it_brings(worker: Told) -> None:
    wanted = item("a", epoch=3)
    wanted.request.generated_token_ids.extend(worker.answer(wanted)[:4])
    worker.submit(wanted)
    run_out(worker)
    assert stream(worker, "a") == whole(worker, wanted, 4)
    assert told(worker) == [("a", 3, "length", 10)]


def test_a_timeslice_ends_after_its_tokens_and_the_next_begins_there(worker: Told) -> None:
    wanted = item("a", budget=4)
    worker.submit(wanted)
    run_out(worker)
    assert told(worker) == [("a", 1, 0, TIMESLICE, PARKED, 4)]
    assert (len(stream(worker, "a")), worker.status().kv_cells_used) == (4, 5 + 3)
    resume(worker, "a", run=1, budget=3)
    run_out(worker)
    assert told(worker)[1:] == [("a", 1, 1, TIMESLICE, PARKED, 7)]
    assert len(stream(worker, "a")) == 7
    resume(worker, "a", run=2)
    run_out(worker)
    assert told(worker)[2:] == [("a", 1, "length", 10)]
    assert stream(worker, "a") == whole(worker, wanted)
    assert worker.status().kv_cells_used == 0


def test_a_descheduled_request_lets_another_run_and_goes_on_in_any_slot(worker: Told) -> None:
    first, second = item("a"), item("b")
    worker.submit(first)
    until(worker, "a", 2)
    preempt(worker, "a", second)
    assert told(worker) == [("a", 1, 0, PREEMPTED, PARKED, 2)]
    assert residents(worker) == {"a": (PARKED, 1, 0), "b": (RUNNING, 1, 0)}
    until(worker, "b", 1)
    assert worker.status().kv_cells_used > worker.status().kv_cells_reserved > 0
    assert list(resume(worker, "a", slot=2).accepted_request_ids) == ["a"]
    run_out(worker)
    assert stream(worker, "a") == whole(worker, first)
    assert stream(worker, "b") == whole(worker, second)
    assert sorted(told(worker)[1:]) == [("a", 1, "length", 10), ("b", 1, "length", 10)]


def test_the_latest_assignment_of_a_slot_deschedules_who_runs_there(worker: Told) -> None:
    first, second = item("a"), item("b")
    worker.submit(first)
    worker.settle()
    assert list(worker.submit(second).accepted_request_ids) == ["b"]
    worker.settle()
    assert told(worker) == [("a", 1, 0, PREEMPTED, PARKED, 1)]
    resume(worker, "a", slot=1)
    run_out(worker)
    assert stream(worker, "a") == whole(worker, first)
    assert stream(worker, "b") == whole(worker, second)


def test_messages_of_an_earlier_run_or_of_this_one_again_change_nothing(worker: Told) -> None:
    wanted = item("a")
    worker.submit(wanted)
    resume(worker, "a", slot=1, run=1)
    worker.settle()
    worker.submit(deschedule=(end_of("a"),))
    worker.command(worker_pb2.WorkerCommand(deschedule=end_of("a")))
    worker.command(worker_pb2.WorkerCommand(deschedule=end_of("a", run=5, epoch=2)))
    for run in (0, 1):
        assert list(resume(worker, "a", slot=2, run=run).accepted_request_ids) == ["a"]
    worker.settle()
    (resident,) = worker.status().residents
    assert (resident.residence, resident.slot, resident.run) == (RUNNING, 1, 1)
    run_out(worker)
    assert stream(worker, "a") == whole(worker, wanted)
    assert told(worker) == [("a", 1, "length", 10)]


def test_the_end_of_a_run_that_never_came_is_told(worker: Told) -> None:
    worker.submit(item("a"))
    worker.settle()
    preempt(worker, "a")
    worker.command(worker_pb2.WorkerCommand(deschedule=end_of("a", run=3)))
    worker.settle()
    assert [one[:5] for one in told(worker)] == [("a", 1, run, PREEMPTED, PARKED) for run in (0, 3)]
    assert residents(worker) == {"a": (PARKED, 1, 3)}


def test_only_residents_of_this_epoch_are_resumed(worker: Told) -> None:
    worker.submit(item("a", epoch=2))
    worker.settle()
    for request_id, epoch in (("a", 1), ("a", 3), ("b", 1)):
        answer = resume(worker, request_id, slot=1, epoch=epoch)
        assert refusals(answer) == [worker_pb2.REFUSAL_REASON_NOT_RESIDENT]


def test_a_higher_epoch_replaces_without_a_word_and_no_other_is_taken(worker: Told) -> None:
    worker.submit(item("a", epoch=2))
    until(worker, "a", 2)
    preempt(worker, "a")  # epoch 1: nothing
    for epoch in (1, 2):
        answer = worker.submit(item("a", slot=1, epoch=epoch))
        assert refusals(answer) == [worker_pb2.REFUSAL_REASON_INVALID]
    third = item("a", slot=1, epoch=3)
    assert not worker.submit(third).refused
    run_out(worker)
    assert [one for one in stream(worker, "a") if one[0] == 3] == whole(worker, third)
    assert {epoch for epoch, *_ in stream(worker, "a")} == {2, 3}
    assert told(worker) == [("a", 3, "length", 10)]


def test_running_and_parked_requests_can_be_cancelled(worker: Told) -> None:
    worker.submit(item("a"), item("b", slot=1))
    until(worker, "b", 2)
    preempt(worker, "b")
    worker.cancel("never-came")
    worker.cancel("b")
    worker.cancel("a")
    worker.settle()
    assert residents(worker) == {}
    assert told(worker)[0] == ("b", 1, 0, PREEMPTED, PARKED, 2)
    assert [one[:3] for one in told(worker)[1:]] == [("b", 1, "cancelled"), ("a", 1, "cancelled")]
    for name in ("a", "b"):
        assert stream(worker, name)[-1] == (1, "cancelled")


def test_a_cancel_reaches_its_attempt_alone_and_also_before_it_comes(worker: Told) -> None:
    worker.submit(item("a", attempt="second"))
    worker.settle()
    worker.cancel("a", "first")
    worker.cancel("b", "early")
    worker.settle()
    assert residents(worker) == {"a": (RUNNING, 1, 0)}
    early = worker.submit(item("b", slot=1, attempt="early"))
    assert refusals(early) == [worker_pb2.REFUSAL_REASON_CANCELLED]
    assert not worker.submit(item("b", slot=1, attempt="late")).refused
    worker.cancel("a", "second")
    worker.settle()
    assert stream(worker, "a")[-1] == (1, "cancelled")


def test_a_dropped_request_is_gone_without_a_word(worker: Told) -> None:
    worker.submit(item("a", epoch=2))
    worker.settle()
    drop = worker_pb2.DropRequest(tenant="t", request_id="a", epoch=1)
    worker.command(worker_pb2.WorkerCommand(drop=drop))
    worker.settle()
    assert residents(worker) == {"a": (RUNNING, 2, 0)}
    drop.epoch = 2
    worker.command(worker_pb2.WorkerCommand(drop=drop))
    worker.settle()
    assert (residents(worker), told(worker), list(worker.status().finished)) == ({}, [], [])
    assert all(len(one) == 3 for one in stream(worker, "a")), "it has no end here"


def test_an_old_term_changes_nothing(worker: Told) -> None:
    worker.submit(item("a"), term=5)
    worker.settle()
    answer = worker.submit(item("b", slot=1), deschedule=(end_of("a"),), term=4)
    assert refusals(answer) == [worker_pb2.REFUSAL_REASON_OLD_TERM]
    worker.command(worker_pb2.WorkerCommand(drain=worker_pb2.DrainWorker(), term=4))
    worker.settle()
    assert residents(worker) == {"a": (RUNNING, 1, 0)}
    assert worker.status().state == scheduler_pb2.WORKER_STATE_READY
    assert worker.status().term == 5


def test_a_draining_worker_takes_nothing_new_and_lets_the_parked_go_on(worker: Told) -> None:
    wanted = item("a")
    worker.submit(wanted, term=1)
    worker.settle()
    worker.command(worker_pb2.WorkerCommand(deschedule=end_of("a"), term=1))
    worker.command(worker_pb2.WorkerCommand(drain=worker_pb2.DrainWorker(), term=1))
    worker.settle()
    assert worker.status().state == scheduler_pb2.WORKER_STATE_DRAINING
    refused = worker.submit(item("b", slot=1), term=1)
    assert refusals(refused) == [worker_pb2.REFUSAL_REASON_NOT_READY]
    again = resume_item("a")
    again.request.model, again.run = "m", 1
    assert not worker.submit(again, phase=worker_pb2.PHASE_DECODE, term=1).refused
    run_out(worker)
    assert stream(worker, "a") == whole(worker, wanted)
    worker.command(worker_pb2.WorkerCommand(undrain=worker_pb2.UndrainWorker(), term=1))
    assert not worker.submit(item("b", slot=1), term=1).refused


def test_what_never_fits_is_refused_and_so_is_a_slot_that_is_not_there(worker: Told) -> None:
    large = item("a", prompt=60, max_tokens=CELLS - 60 + 2)
    assert refusals(worker.submit(large)) == [worker_pb2.REFUSAL_REASON_NO_MEMORY]
    assert refusals(worker.submit(item("a", slot=3))) == [worker_pb2.REFUSAL_REASON_INVALID]
    assert refusals(worker.submit(item("a", prompt=60, max_tokens=CELLS - 60 + 1))) == []


def test_without_room_the_parked_leave_first_then_the_less_urgent_and_all_go_on_later(worker: Told) -> None:
    parked = item("parked", prompt=30)
    late = item("late", slot=1, prompt=30, urgency_key=5.0, max_tokens=20)
    urgent = item("urgent", slot=2, prompt=50, urgency_key=1.0, max_tokens=30)
    worker.submit(parked)
    until(worker, "parked", 1)
    preempt(worker, "parked", late)
    until(worker, "late", 1)
    worker.submit(urgent)
    run_out(worker)
    moved = [one for one in told(worker) if MEMORY in one[3:4]]
    assert [one[0] for one in moved] == ["parked", "late"]
    assert {one[4] for one in moved} == {SWAPPED}
    for name in ("late", "parked"):
        resume(worker, name)
        run_out(worker)
    for wanted in (parked, late, urgent):
        assert stream(worker, wanted.request.request_id) == whole(worker, wanted)


@pytest.mark.parametrize("make", [WithLlama, WithNull])
def test_a_deadline_ends_what_runs_and_what_waits(make: type[WithLlama | WithNull]) -> None:
    """The scheduler gives no deadline to the other two: they have no clock."""
    worker = make()
    first, second = item("a"), item("b", slot=1)
    for one in (first, second):
        one.request.deadline_unix_ms = int(time.time() * 1000) + 3_600_000
    worker.submit(first, second)
    until(worker, "b", 1)
    preempt(worker, "b")
    worker.ahead_s = 3_700
    worker.settle()
    assert told(worker)[0] == ("b", 1, 0, PREEMPTED, PARKED, 1)
    assert sorted(one[:3] for one in told(worker)[1:]) == [
        ("a", 1, "deadline_exceeded"),
        ("b", 1, "deadline_exceeded"),
    ]
    for name in ("a", "b"):
        assert stream(worker, name)[-1] == (1, "DEADLINE_EXCEEDED")
