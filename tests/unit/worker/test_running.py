"""What a worker takes on board, what it refuses and why, and what it remembers."""

from __future__ import annotations

import dataclasses

import pytest

from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2, worker_pb2
from inferflux.worker import running
from inferflux.worker.running import REMEMBERED_S, Limits, Refused, RunningTable

RUNNING = scheduler_pb2.RESIDENCE_RUNNING
PARKED = scheduler_pb2.RESIDENCE_PARKED
SWAPPED = scheduler_pb2.RESIDENCE_SWAPPED

LIMITS = Limits(slots=2, sequences=4, kv_cells=100, context_length=64, vocabulary_size=50)


def table() -> RunningTable:
    made = RunningTable()
    made.limits = LIMITS
    return made


def item(
    request_id: str = "a",
    *,
    slot: int = 0,
    epoch: int = 1,
    prompt: int = 10,
    max_tokens: int = 10,
    generated: int = 0,
    token: int = 1,
    bias: dict[int, float] | None = None,
    attempt: str = "",
) -> worker_pb2.BatchItem:
    return worker_pb2.BatchItem(
        slot=slot,
        request=scheduler_pb2.InferenceRequest(
            request_id=request_id,
            tenant="t",
            epoch=epoch,
            attempt_id=attempt,
            prompt_token_ids=[token] * prompt,
            generated_token_ids=[1] * generated,
            params=generation_pb2.GenerationParams(
                max_tokens=max_tokens, sampling=generation_pb2.SamplingParams(logit_bias=bias or {})
            ),
        ),
    )


def refusal(made: RunningTable, wanted: worker_pb2.BatchItem) -> worker_pb2.RefusalReason.ValueType:
    before = made.all()
    residences = [r.residence for r in before]
    with pytest.raises(Refused) as caught:
        made.admit(wanted)
    assert made.all() == before
    assert [r.residence for r in made.all()] == residences
    return caught.value.reason


def resumption(request_id: str = "a", *, slot: int = 0, epoch: int = 1) -> worker_pb2.BatchItem:
    request = scheduler_pb2.InferenceRequest(request_id=request_id, tenant="t", epoch=epoch)
    return worker_pb2.BatchItem(slot=slot, request=request)


def preemption(request_id: str = "a", *, epoch: int = 1) -> worker_pb2.Preemption:
    return worker_pb2.Preemption(tenant="t", request_id=request_id, epoch=epoch)


def news(
    residence: scheduler_pb2.Residence.ValueType, *, request_id: str = "a", epoch: int = 1, turn: int = 0
) -> engine_pb2.EngineYielded:
    return engine_pb2.EngineYielded(key=f"t.{request_id}", epoch=epoch, residence=residence, turn=turn)


def not_resumed(made: RunningTable, wanted: worker_pb2.BatchItem) -> worker_pb2.RefusalReason.ValueType:
    with pytest.raises(Refused) as caught:
        made.resume(wanted)
    return caught.value.reason


def test_no_more_are_taken_up_than_a_heartbeat_may_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "MAX_REQUESTS", 1)
    made = table()
    made.admit(item("a", slot=0))
    assert refusal(made, item("b", slot=1)) == worker_pb2.REFUSAL_REASON_SLOT_BUSY
    made.admit(item("a", slot=0, epoch=2))


def test_an_admitted_request_holds_its_slot_until_it_ends() -> None:
    made = table()
    running, replaced = made.admit(item())
    assert replaced is None
    assert made.has_running
    assert refusal(made, item("b")) == worker_pb2.REFUSAL_REASON_SLOT_BUSY
    assert made.end("t.a", 1, now=0.0) is running
    assert not made.has_running
    made.admit(item("b"))


def test_only_what_never_fits_the_cache_is_refused_for_memory() -> None:
    made = table()
    made.limits = dataclasses.replace(LIMITS, kv_cells=40)
    assert refusal(made, item(prompt=21, max_tokens=21)) == worker_pb2.REFUSAL_REASON_NO_MEMORY
    made.admit(item("a", prompt=20, max_tokens=21))
    made.admit(item("b", slot=1, prompt=20, max_tokens=21))


def test_no_more_run_than_there_are_slots_but_parked_ones_may_stay_beside_them() -> None:
    made = table()
    made.admit(item("a", slot=0))
    made.admit(item("b", slot=3))
    assert refusal(made, item("c", slot=1)) == worker_pb2.REFUSAL_REASON_SLOT_BUSY
    assert made.park(preemption("a")) is made.get("t.a")
    made.admit(item("c", slot=1))
    assert [r.residence for r in made.all()] == [PARKED, RUNNING, RUNNING]
    assert not_resumed(made, resumption("a")) == worker_pb2.REFUSAL_REASON_SLOT_BUSY


def test_who_is_parked_in_a_wanted_slot_is_swapped_out() -> None:
    made = table()
    parked, _ = made.admit(item("a"))
    made.park(preemption("a"))
    made.admit(item("b"))
    assert parked.residence == SWAPPED
    assert not_resumed(made, resumption("a")) == worker_pb2.REFUSAL_REASON_SLOT_BUSY
    assert made.resume(resumption("a", slot=2)) is parked
    assert (parked.residence, parked.slot, parked.turn) == (RUNNING, 2, 1)


def test_what_does_not_run_is_not_parked() -> None:
    made = table()
    made.admit(item())
    assert made.park(preemption("other")) is None
    assert made.park(preemption(epoch=2)) is None
    assert made.park(preemption()) is not None
    assert made.park(preemption()) is None


def test_only_what_is_on_board_is_resumed() -> None:
    made = table()
    made.admit(item(epoch=2))
    assert not_resumed(made, resumption("other")) == worker_pb2.REFUSAL_REASON_NOT_ON_BOARD
    assert not_resumed(made, resumption(epoch=1)) == worker_pb2.REFUSAL_REASON_NOT_ON_BOARD
    assert not_resumed(made, resumption(epoch=3)) == worker_pb2.REFUSAL_REASON_NOT_ON_BOARD


def test_to_resume_what_runs_changes_nothing() -> None:
    made = table()
    running, _ = made.admit(item(slot=1))
    assert made.resume(resumption(slot=0)) is None
    assert (running.slot, running.turn) == (1, 0)


def test_late_news_of_an_earlier_turn_is_no_news() -> None:
    made = table()
    running, _ = made.admit(item())
    made.park(preemption())
    made.resume(resumption())
    assert made.yielded(news(PARKED, turn=0)) is None
    assert running.residence == RUNNING
    assert made.yielded(news(SWAPPED, turn=1)) is running
    assert running.residence == SWAPPED


def test_news_of_another_epoch_or_of_nobody_is_no_news() -> None:
    made = table()
    made.admit(item())
    assert made.yielded(news(PARKED, epoch=2)) is None
    assert made.yielded(news(PARKED, request_id="gone")) is None


def test_who_was_swapped_out_is_not_parked_again_by_late_news() -> None:
    made = table()
    running, _ = made.admit(item("a"))
    made.park(preemption("a"))
    made.admit(item("b"))
    assert made.yielded(news(PARKED)) is running
    assert running.residence == SWAPPED


def test_a_parked_request_is_replaced_by_a_higher_epoch() -> None:
    made = table()
    parked, _ = made.admit(item())
    made.park(preemption())
    running, replaced = made.admit(item(epoch=2))
    assert replaced is parked
    assert made.all() == [running]


def test_how_far_a_request_is_follows_its_prompt_and_its_chunks() -> None:
    made = table()
    running, _ = made.admit(item())
    made.prefilled(engine_pb2.Prefilled(key="t.a", epoch=1, computed_tokens=6))
    assert running.to_message().computed_tokens == 6
    running.emitted(engine_pb2.Emission(key="t.a", epoch=1, generated_tokens=3))
    assert running.to_message().computed_tokens == 12
    made.prefilled(engine_pb2.Prefilled(key="t.a", epoch=1, computed_tokens=0))
    assert running.to_message().computed_tokens == 0


@pytest.mark.parametrize(
    "bad",
    [
        item(prompt=0),
        item(token=50),
        item(token=-1),
        item(max_tokens=0),
        item(prompt=60, max_tokens=5),
        item(generated=10, max_tokens=10),
        item(bias={50: 1.0}),
        item(slot=4),
    ],
)
def test_what_llama_cpp_would_abort_over_is_refused_as_invalid(bad: worker_pb2.BatchItem) -> None:
    assert refusal(table(), bad) == worker_pb2.REFUSAL_REASON_INVALID


def test_a_higher_epoch_replaces_and_a_lower_or_equal_one_is_refused() -> None:
    made = table()
    first, _ = made.admit(item(epoch=2))
    assert refusal(made, item(epoch=2)) == worker_pb2.REFUSAL_REASON_INVALID
    assert refusal(made, item(epoch=1)) == worker_pb2.REFUSAL_REASON_INVALID
    second, replaced = made.admit(item(epoch=3, slot=0))
    assert replaced is first
    assert made.end("t.a", 2, now=0.0) is None
    assert made.get("t.a") is second


def test_a_request_cancelled_before_it_came_is_refused() -> None:
    made = table()
    assert made.cancel("t.a", "first", now=0.0) is None
    assert refusal(made, item(attempt="first")) == worker_pb2.REFUSAL_REASON_CANCELLED
    made.ended_lately(REMEMBERED_S - 1)
    assert refusal(made, item(attempt="first")) == worker_pb2.REFUSAL_REASON_CANCELLED
    made.ended_lately(REMEMBERED_S + 1)
    made.admit(item(attempt="first"))


def test_a_cancel_notice_does_not_reach_another_attempt_under_the_same_id() -> None:
    made = table()
    made.admit(item(attempt="second"))
    assert made.cancel("t.a", "first", now=0.0) is None
    made.drop("t.a", 1)
    made.admit(item(attempt="second"))
    assert made.cancel("t.a", "second", now=0.0) is made.get("t.a")


def test_a_cancel_that_names_no_attempt_reaches_what_is_here_and_nothing_that_comes() -> None:
    made = table()
    assert made.cancel("t.a", "", now=0.0) is None
    made.admit(item(attempt="first"))
    assert made.cancel("t.a", "", now=0.0) is made.get("t.a")


def test_a_cancel_notice_that_is_repeated_is_kept_from_then_on() -> None:
    made = table()
    made.cancel("t.a", "first", now=0.0)
    made.cancel("t.b", "first", now=1.0)
    made.cancel("t.a", "first", now=REMEMBERED_S)
    made.ended_lately(REMEMBERED_S + 2)
    assert refusal(made, item("a", attempt="first")) == worker_pb2.REFUSAL_REASON_CANCELLED
    made.admit(item("b", attempt="first"))


def test_another_tenants_cancel_does_not_reach_a_request() -> None:
    made = table()
    made.admit(item())
    assert made.cancel("stranger.a", "", now=0.0) is None


def test_two_tenants_may_use_the_same_request_id() -> None:
    made = table()
    made.admit(item())
    other = item(slot=1)
    other.request.tenant = "stranger"
    running, replaced = made.admit(other)
    assert replaced is None
    assert made.get("stranger.a") is running


def test_endings_are_remembered_for_a_while() -> None:
    made = table()
    made.admit(item())
    made.end("t.a", 1, now=0.0)
    assert [r.request_id for r in made.ended_lately(REMEMBERED_S - 1)] == ["a"]
    assert made.ended_lately(REMEMBERED_S + 1) == []


def test_a_dead_engine_leaves_nothing_on_board_and_takes_nothing() -> None:
    made = table()
    running, _ = made.admit(item())
    assert made.clear() == [running]
    assert refusal(made, item()) == worker_pb2.REFUSAL_REASON_NOT_READY
