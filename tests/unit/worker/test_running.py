"""What a worker takes on board, what it refuses and why, and what it remembers."""

from __future__ import annotations

import pytest

from inferflux.v1 import generation_pb2, scheduler_pb2, worker_pb2
from inferflux.worker.running import REMEMBERED_S, Limits, Refused, RunningTable

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
) -> worker_pb2.BatchItem:
    return worker_pb2.BatchItem(
        slot=slot,
        request=scheduler_pb2.InferenceRequest(
            request_id=request_id,
            tenant="t",
            epoch=epoch,
            prompt_token_ids=[token] * prompt,
            generated_token_ids=[1] * generated,
            params=generation_pb2.GenerationParams(
                max_tokens=max_tokens, sampling=generation_pb2.SamplingParams(logit_bias=bias or {})
            ),
        ),
    )


def refusal(made: RunningTable, wanted: worker_pb2.BatchItem) -> worker_pb2.RefusalReason.ValueType:
    before = made.all()
    with pytest.raises(Refused) as caught:
        made.admit(wanted)
    assert made.all() == before
    return caught.value.reason


def test_an_admitted_request_holds_its_slot_and_cells_until_it_ends() -> None:
    made = table()
    running, replaced = made.admit(item())
    assert replaced is None
    assert made.cells_reserved == running.cells == 19
    assert refusal(made, item("b")) == worker_pb2.REFUSAL_REASON_SLOT_BUSY
    assert made.end("t.a", 1, now=0.0) is running
    assert made.cells_reserved == 0
    made.admit(item("b"))


def test_what_does_not_fit_the_cache_is_refused() -> None:
    made = table()
    made.admit(item(prompt=30, max_tokens=30))
    assert refusal(made, item("b", slot=1, prompt=30, max_tokens=30)) == worker_pb2.REFUSAL_REASON_NO_MEMORY


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
    assert made.end("t.a", 2, now=0.0) is None
    assert made.get("t.a") is second


def test_a_request_cancelled_before_it_came_is_refused() -> None:
    made = table()
    assert made.cancel("t.a", now=0.0) is None
    assert refusal(made, item()) == worker_pb2.REFUSAL_REASON_CANCELLED
    made.cancel("t.other", now=REMEMBERED_S + 1)
    made.admit(item())


def test_another_tenants_cancel_does_not_reach_a_request() -> None:
    made = table()
    made.admit(item())
    assert made.cancel("stranger.a", now=0.0) is None


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
