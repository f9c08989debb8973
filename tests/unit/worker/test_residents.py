"""What becomes resident on a worker, what it refuses and why, and what it remembers."""

from __future__ import annotations

import dataclasses

import pytest

from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2, worker_pb2
from inferflux.worker.model import residents
from inferflux.worker.model.residents import REMEMBERED_S, Limits, Refused, ResidentTable

RUNNING = scheduler_pb2.RESIDENCE_RUNNING
PARKED = scheduler_pb2.RESIDENCE_PARKED
SWAPPED = scheduler_pb2.RESIDENCE_SWAPPED

LIMITS = Limits(slots=2, kv_cells=100, context_length=64, vocabulary_size=50)


def table() -> ResidentTable:
    made = ResidentTable()
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


def refusal(made: ResidentTable, wanted: worker_pb2.BatchItem) -> worker_pb2.RefusalReason.ValueType:
    before = made.all()
    with pytest.raises(Refused) as caught:
        made.admit(wanted)
    assert made.all() == before
    return caught.value.reason


def resumption(request_id: str = "a", *, slot: int = 0, epoch: int = 1, run: int = 1) -> worker_pb2.BatchItem:
    request = scheduler_pb2.InferenceRequest(request_id=request_id, tenant="t", epoch=epoch)
    return worker_pb2.BatchItem(slot=slot, request=request, run=run)


def ended_run(request_id: str = "a", *, epoch: int = 1, run: int = 0) -> worker_pb2.Deschedule:
    return worker_pb2.Deschedule(tenant="t", request_id=request_id, epoch=epoch, run=run)


def news(
    residence: scheduler_pb2.Residence.ValueType, *, request_id: str = "a", epoch: int = 1, run: int = 0
) -> engine_pb2.EngineResidence:
    return engine_pb2.EngineResidence(key=f"t.{request_id}", epoch=epoch, residence=residence, run=run)


def not_resumed(made: ResidentTable, wanted: worker_pb2.BatchItem) -> worker_pb2.RefusalReason.ValueType:
    with pytest.raises(Refused) as caught:
        made.resume(wanted)
    return caught.value.reason


def test_no_more_are_taken_up_than_a_heartbeat_may_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residents, "MAX_REQUESTS", 1)
    made = table()
    made.admit(item("a", slot=0))
    assert refusal(made, item("b", slot=1)) == worker_pb2.REFUSAL_REASON_NO_MEMORY
    made.admit(item("a", slot=0, epoch=2))


def test_an_admitted_request_may_run_until_it_ends() -> None:
    made = table()
    resident, replaced = made.admit(item())
    assert replaced is None
    assert made.has_running
    assert made.finish("t.a", 1, now=0.0) is resident
    assert not made.has_running


def test_only_what_never_fits_the_cache_is_refused_for_memory() -> None:
    made = table()
    made.limits = dataclasses.replace(LIMITS, kv_cells=40)
    assert refusal(made, item(prompt=21, max_tokens=21)) == worker_pb2.REFUSAL_REASON_NO_MEMORY
    made.admit(item("a", prompt=20, max_tokens=21))
    made.admit(item("b", slot=1, prompt=20, max_tokens=21))


def test_where_a_request_is_the_engine_alone_reports() -> None:
    made = table()
    resident, _ = made.admit(item(slot=1))
    assert resident.to_message().residence == scheduler_pb2.RESIDENCE_UNSPECIFIED
    assert made.moved(news(RUNNING)) is resident
    assert resident.to_message().residence == RUNNING
    made.moved(news(PARKED))
    made.moved(news(SWAPPED))
    assert resident.to_message().residence == SWAPPED
    made.resume(resumption())
    assert resident.to_message().residence == SWAPPED


def test_a_request_may_run_from_when_the_engine_is_asked_until_it_reports_otherwise() -> None:
    made = table()
    made.admit(item())
    made.moved(news(RUNNING))
    assert made.has_running
    made.moved(news(PARKED))
    assert not made.has_running
    made.resume(resumption())
    assert made.has_running
    made.moved(news(SWAPPED))  # of the run before
    assert made.has_running
    made.moved(news(PARKED, run=1))
    assert not made.has_running


def test_a_run_is_ended_unless_a_later_one_was_asked_for() -> None:
    made = table()
    resident, _ = made.admit(item())
    assert made.deschedule(ended_run("other")) is None
    assert made.deschedule(ended_run(epoch=2)) is None
    assert made.deschedule(ended_run()) is resident
    made.resume(resumption(run=2))
    assert made.deschedule(ended_run(run=1)) is None
    assert made.deschedule(ended_run(run=3)) is resident
    assert made.resume(resumption(run=3)) is None
    assert made.resume(resumption(run=4)) is resident


def test_only_residents_are_resumed() -> None:
    made = table()
    made.admit(item(epoch=2))
    assert not_resumed(made, resumption("other")) == worker_pb2.REFUSAL_REASON_NOT_RESIDENT
    assert not_resumed(made, resumption(epoch=1)) == worker_pb2.REFUSAL_REASON_NOT_RESIDENT
    assert not_resumed(made, resumption(epoch=3)) == worker_pb2.REFUSAL_REASON_NOT_RESIDENT


def test_news_of_another_epoch_or_of_an_unknown_request_is_no_news() -> None:
    made = table()
    made.admit(item())
    assert made.moved(news(PARKED, epoch=2)) is None
    assert made.moved(news(PARKED, request_id="gone")) is None
    assert made.has_running


def test_a_parked_request_is_replaced_by_a_higher_epoch() -> None:
    made = table()
    parked, _ = made.admit(item())
    made.moved(news(PARKED))
    resident, replaced = made.admit(item(epoch=2))
    assert replaced is parked
    assert made.all() == [resident]


def test_how_far_a_request_is_follows_its_prompt_and_its_chunks() -> None:
    made = table()
    resident, _ = made.admit(item())
    made.prefilled(engine_pb2.Prefilled(key="t.a", epoch=1, computed_tokens=6))
    assert resident.to_message().computed_tokens == 6
    resident.emitted(engine_pb2.Emission(key="t.a", epoch=1, generated_tokens=3))
    assert resident.to_message().computed_tokens == 12
    made.prefilled(engine_pb2.Prefilled(key="t.a", epoch=1, computed_tokens=0))
    assert resident.to_message().computed_tokens == 0


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
        item(slot=2),
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
    assert made.finish("t.a", 2, now=0.0) is None
    assert made.all() == [second]


def test_a_request_cancelled_before_it_came_is_refused() -> None:
    made = table()
    assert made.cancel("t.a", "first", now=0.0) is None
    assert refusal(made, item(attempt="first")) == worker_pb2.REFUSAL_REASON_CANCELLED
    made.finished_lately(REMEMBERED_S - 1)
    assert refusal(made, item(attempt="first")) == worker_pb2.REFUSAL_REASON_CANCELLED
    made.finished_lately(REMEMBERED_S + 1)
    made.admit(item(attempt="first"))


def test_a_cancel_notice_does_not_reach_another_attempt_under_the_same_id() -> None:
    made = table()
    made.admit(item(attempt="second"))
    assert made.cancel("t.a", "first", now=0.0) is None
    made.drop("t.a", 1)
    made.admit(item(attempt="second"))
    assert made.cancel("t.a", "second", now=0.0) is made.all()[0]


def test_a_cancel_that_names_no_attempt_reaches_what_is_here_and_nothing_that_comes() -> None:
    made = table()
    assert made.cancel("t.a", "", now=0.0) is None
    made.admit(item(attempt="first"))
    assert made.cancel("t.a", "", now=0.0) is made.all()[0]


def test_a_cancel_notice_that_is_repeated_is_kept_from_then_on() -> None:
    made = table()
    made.cancel("t.a", "first", now=0.0)
    made.cancel("t.b", "first", now=1.0)
    made.cancel("t.a", "first", now=REMEMBERED_S)
    made.finished_lately(REMEMBERED_S + 2)
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
    resident, replaced = made.admit(other)
    assert replaced is None
    assert resident in made.all()


def test_endings_are_remembered_for_a_while() -> None:
    made = table()
    made.admit(item())
    made.finish("t.a", 1, now=0.0)
    assert [r.request_id for r in made.finished_lately(REMEMBERED_S - 1)] == ["a"]
    assert made.finished_lately(REMEMBERED_S + 1) == []


def test_a_dead_engine_leaves_no_residents_and_takes_nothing() -> None:
    made = table()
    resident, _ = made.admit(item())
    assert made.clear() == [resident]
    assert refusal(made, item()) == worker_pb2.REFUSAL_REASON_NOT_READY


def test_the_chunks_of_an_attempt_whose_engine_died_are_kept_before_those_of_the_next() -> None:
    made = table()
    first, _ = made.admit(item())
    first.chunks += [b"0", b"1"]
    made.left(made.clear(), now=10.0)
    made.limits = LIMITS
    second, _ = made.admit(item(epoch=2, generated=2))
    second.chunks.append(b"2")
    assert made.kept_chunks(11.0) == {first.subject: [b"0", b"1", b"2"]}
    made.finish(second.key, 2, 12.0)
    assert made.kept_chunks(13.0) == {first.subject: [b"0", b"1", b"2"]}


def test_the_chunks_of_an_attempt_that_left_are_forgotten_after_a_while() -> None:
    made = table()
    resident, _ = made.admit(item())
    resident.chunks.append(b"0")
    made.left(made.clear(), now=10.0)
    assert made.kept_chunks(10.0 + REMEMBERED_S) == {resident.subject: [b"0"]}
    assert made.kept_chunks(10.1 + REMEMBERED_S) == {}
