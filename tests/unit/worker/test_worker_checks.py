"""What a message must be like before the worker acts on it."""

from __future__ import annotations

from typing import Any

import pytest
from harness.worker import batch_item

from inferflux.common.contract.epochs import MAX_EPOCH
from inferflux.common.contract.errors import InvalidArgument
from inferflux.v1 import scheduler_pb2, worker_pb2
from inferflux.worker.host import checks
from inferflux.worker.model.residents import Limits, Refused, check_request

LIMITS = Limits(slots=4, kv_cells=1000, context_length=512, vocabulary_size=100)


def test_an_item_as_a_scheduler_sends_it_passes() -> None:
    item = batch_item("r", logprobs=20, repeat_penalty=0.01, seed=2**64 - 1, logit_bias={99: -100.0})
    checks.check_item(item)
    check_request(item.request, LIMITS)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("urgency_key", {"urgency_key": float("nan")}),
        ("urgency_key", {"urgency_key": float("-inf")}),
        ("token_budget", {"token_budget": 2**32 - 1}),
        ("request.epoch", {"epoch": 0}),
        ("request.epoch", {"epoch": MAX_EPOCH + 1}),
        ("request.request_id", {"request_id": "a.b"}),
    ],
)
def test_an_item_that_cannot_be_is_refused(field: str, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        checks.check_item(batch_item(**({"request_id": "r"} | change)))
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("take_state.token_ids", {"token_ids": b"\0\0\0\0\0"}),
        ("take_state.cache_scope", {"cache_scope": "s" * 1000}),
        ("take_state.origin.epoch", {"origin": worker_pb2.StateOrigin()}),
        ("take_state.tenant", {"tenant": "a.b"}),
    ],
)
def test_state_that_cannot_be_fetched_is_refused(field: str, change: dict[str, Any]) -> None:
    source = scheduler_pb2.KvSource(worker_id="w", incarnation="i")
    origin = worker_pb2.StateOrigin(source=source, epoch=1)
    fields: dict[str, Any] = {"tenant": "t", "request_id": "r", "origin": origin, "token_ids": b"\0\0\0\0"}
    checks.check_command(worker_pb2.WorkerCommand(take_state=worker_pb2.TakeState(**fields)))
    with pytest.raises(InvalidArgument) as refused:
        checks.check_command(worker_pb2.WorkerCommand(take_state=worker_pb2.TakeState(**(fields | change))))
    assert refused.value.field == field


def test_a_cache_scope_of_other_characters_than_a_tenant_is_refused() -> None:
    item = batch_item("r")
    item.request.cache_scope = "a/b"
    with pytest.raises(InvalidArgument, match=r"cache_scope"):
        checks.check_item(item)


def test_a_tenant_that_cannot_stand_in_a_subject_is_refused() -> None:
    item = batch_item("r")
    item.request.tenant = "a b"
    with pytest.raises(InvalidArgument, match=r"request\.tenant"):
        checks.check_item(item)


@pytest.mark.parametrize(
    "sampling",
    [
        {"min_p": 2.0},
        {"min_p": float("nan")},
        {"logprobs": -1},
        {"logprobs": 1000},
        {"repeat_penalty": 1e-38},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_k": -5},
        {"logit_bias": {5: float("nan")}},
        {"logit_bias": {100: 1.0}},
    ],
)
def test_sampling_values_out_of_range_are_refused_by_name(sampling: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="params.sampling." + next(iter(sampling))) as refused:
        check_request(batch_item("r", **sampling).request, LIMITS)
    assert refused.value.reason == worker_pb2.REFUSAL_REASON_INVALID


@pytest.mark.parametrize("stop", [[""], ["x"] * 17, ["x" * 257]])
def test_stop_strings_out_of_range_are_refused_by_name(stop: list[str]) -> None:
    with pytest.raises(Refused, match=r"params\.stop"):
        check_request(batch_item("r", stop=stop).request, LIMITS)


@pytest.mark.parametrize(
    ("field", "batch"),
    [
        ("phase", {"items": [{}]}),
        ("phase", {"items": [{}], "phase": 9}),
        ("items", {"items": [{}] * 5000, "phase": 1}),
        ("deschedule", {"deschedule": [{}] * 5000}),
        ("deschedule.tenant", {"deschedule": [{}]}),
        ("deschedule.run", {"deschedule": [{"tenant": "t", "request_id": "r", "run": 2**32 - 1}]}),
        ("batch_id", {"batch_id": "b" * 1000}),
    ],
)
def test_a_batch_that_cannot_be_is_refused(field: str, batch: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        checks.check_batch(worker_pb2.RequestBatch(**batch))
    assert refused.value.field == field


def test_a_batch_of_nothing_is_one() -> None:
    checks.check_batch(worker_pb2.RequestBatch(batch_id="s-1"))


def test_a_command_names_a_request_that_can_be() -> None:
    drop = worker_pb2.WorkerCommand(drop={"tenant": "a b", "request_id": "r"})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"drop\.tenant"):
        checks.check_command(drop)
