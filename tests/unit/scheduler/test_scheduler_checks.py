"""What a message must be like before the core is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from inferflux.common.contract.epochs import MAX_EPOCH
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.messages.heartbeats import check_status
from inferflux.common.contract.requests.constraint_limits import MAX_FUNCTIONS
from inferflux.scheduler.core.lifecycle import checks
from inferflux.scheduler.edge.replay import decode
from inferflux.v1 import generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2

AnswerFormat = generation_pb2.AnswerFormat
Params = generation_pb2.GenerationParams
Sampling = generation_pb2.SamplingParams


def job(**fields: Any) -> scheduler_pb2.InferenceRequest:
    params = Params(max_tokens=8, sampling=Sampling(temperature=0.8, seed=2**64 - 1))
    usual: dict[str, Any] = {
        "request_id": "r",
        "tenant": "acme",
        "model": "demo",
        "prompt_token_ids": [1, 2, 2**31 - 1],
        "params": params,
        "priority": 100,
        "epoch": 1,
    }
    return scheduler_pb2.InferenceRequest(**(usual | fields))


def test_a_job_as_gateways_send_it_passes() -> None:
    checks.check_job(job())
    checks.check_job(job(deadline_unix_ms=2**62, enqueued_unix_ms=-1))


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("model", {"model": ""}),
        ("model", {"model": "m" * 257}),
        ("prompt_token_ids", {"prompt_token_ids": []}),
        ("prompt_token_ids[1]", {"prompt_token_ids": [3, -1]}),
        ("generated_token_ids[0]", {"generated_token_ids": [-5]}),
        ("generated_token_ids", {"generated_token_ids": [1] * 8}),
        ("priority", {"priority": 101}),
        ("priority", {"priority": -(2**31)}),
        ("deadline_unix_ms", {"deadline_unix_ms": -1}),
        ("epoch", {"epoch": MAX_EPOCH + 1}),
        ("epoch", {"epoch": 2**32 - 1}),
        ("same_prompt_as", {"same_prompt_as": "a b"}),
        ("cache_scope", {"cache_scope": "a b"}),
        ("cache_scope", {"cache_scope": "x" * 65}),
        ("answer_format.functions", {"answer_format": AnswerFormat(functions=["f"] * (MAX_FUNCTIONS + 1))}),
        ("params.max_tokens", {"params": Params(max_tokens=0)}),
        ("params.max_tokens", {"params": Params(max_tokens=-7)}),
        ("params.stop[0]", {"params": Params(stop=[""])}),
        ("params.sampling.min_p", {"params": Params(sampling=Sampling(min_p=2.0))}),
        ("params.sampling.logprobs", {"params": Params(sampling=Sampling(logprobs=-1))}),
        ("params.sampling.temperature", {"params": Params(sampling=Sampling(temperature=float("nan")))}),
        ("params.sampling.repeat_penalty", {"params": Params(sampling=Sampling(repeat_penalty=1e-38))}),
    ],
)
def test_a_job_out_of_range_is_refused_with_the_fields_name(field: str, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        checks.check_job(job(**bad))
    assert refused.value.field == field


def status(**fields: Any) -> scheduler_pb2.WorkerStatus:
    usual: dict[str, Any] = {
        "worker_id": "w1",
        "incarnation": "i1",
        "state": scheduler_pb2.WORKER_STATE_READY,
        "slots": 4,
    }
    return scheduler_pb2.WorkerStatus(**(usual | fields))


def residents(**fields: Any) -> list[scheduler_pb2.ResidentRequest]:
    usual: dict[str, Any] = {"request_id": "r", "tenant": "t", "epoch": 1}
    return [scheduler_pb2.ResidentRequest(**(usual | fields))]


def test_a_heartbeat_of_a_worker_passes() -> None:
    check_status(status())
    check_status(status(residents=residents(residence=scheduler_pb2.RESIDENCE_SWAPPED, slot=2**32 - 1)))


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("worker_id", {"worker_id": "w 1"}),
        ("incarnation", {"incarnation": ""}),
        ("state", {"state": 0}),
        ("state", {"state": 77}),
        ("slots", {"slots": 10_000_000}),
        ("kv_cells", {"kv_cells": 2**32 - 1}),
        ("prefill_tokens_per_s", {"prefill_tokens_per_s": float("nan")}),
        ("decode_tokens_per_s", {"decode_tokens_per_s": float("inf")}),
        ("decode_tokens_per_s", {"decode_tokens_per_s": -1.0}),
        ("started_unix_ms", {"started_unix_ms": 2**62}),
        ("prefix_sharing_reason", {"prefix_sharing_reason": "x" * 300}),
        ("models.name", {"models": [{"name": ""}]}),
        ("models.digest", {"models": [{"name": "m", "digest": "../../etc/passwd"}]}),
        ("models.context_length", {"models": [{"name": "m", "context_length": 2**32 - 1}]}),
        ("models.name", {"models": [{"name": "m"}] * 2}),
        ("models", {"models": [{"name": "m"}] * 65}),
        ("residents", {"residents": residents() * 4097}),
        ("finished", {"finished": [{"request_id": "r", "tenant": "t", "epoch": 1}] * 4097}),
        ("residents.tenant", {"residents": residents(tenant="a b")}),
        ("residents.request_id", {"residents": residents(request_id="a.b")}),
        ("residents.epoch", {"residents": residents(epoch=2**32 - 1)}),
        ("residents.slot", {"residents": residents(slot=256, residence=scheduler_pb2.RESIDENCE_RUNNING)}),
        ("residents.run", {"residents": residents(run=2**32 - 1)}),
        ("residents.residence", {"residents": residents(residence=99)}),
        ("residents.generated_tokens", {"residents": residents(generated_tokens=2**32 - 1)}),
        ("finished.epoch", {"finished": [{"request_id": "r", "tenant": "t", "epoch": 2**32 - 1}]}),
    ],
)
def test_a_heartbeat_that_cannot_be_is_refused_with_the_fields_name(field: str, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_status(status(**bad))
    assert refused.value.field == field


NAMED = {"request_id": "r", "tenant": "t", "epoch": 1}
YIELDED = NAMED | {"residence": scheduler_pb2.RESIDENCE_PARKED}


def event(**fields: Any) -> scheduler_pb2.WorkerEvent:
    return scheduler_pb2.WorkerEvent(**({"worker_id": "w1", "incarnation": "i1"} | fields))


def test_an_event_of_a_worker_passes() -> None:
    checks.check_event(event(request_yielded=YIELDED))
    checks.check_event(event(worker_left={}))
    checks.check_event(event(worker_died={}))


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("event", {}),
        ("worker_id", {"worker_id": "", "worker_left": {}}),
        ("request_yielded.residence", {"request_yielded": YIELDED | {"residence": 99}}),
        ("request_yielded.run", {"request_yielded": YIELDED | {"run": 2**32 - 1}}),
        ("request_yielded.tenant", {"request_yielded": YIELDED | {"tenant": "a b"}}),
        ("request_finished.request_id", {"request_finished": {"tenant": "t"}}),
        (
            "request_finished.time_to_first_token_ms",
            {
                "request_finished": {
                    "tenant": "t",
                    "request_id": "r",
                    "time_to_first_token_ms": float("nan"),
                }
            },
        ),
        (
            "engine_died.residents.tenant",
            {"engine_died": {"residents": [NAMED | {"tenant": ">"}]}},
        ),
        ("worker_left.residents.epoch", {"worker_left": {"residents": [NAMED | {"epoch": 2**31}]}}),
    ],
)
def test_an_event_that_cannot_be_is_refused_with_the_fields_name(field: str, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        checks.check_event(event(**bad))
    assert refused.value.field == field


def test_a_refusals_text_is_bounded_and_a_reason_of_a_later_version_allowed() -> None:
    answer = worker_pb2.BatchAccepted()
    answer.refused.add(request_id="r", reason=worker_pb2.RefusalReason.ValueType(99), message="no")
    checks.check_answer(answer)
    answer.refused[0].message = "x" * 5000
    with pytest.raises(InvalidArgument):
        checks.check_answer(answer)


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("request", {}),
        ("change", {"set_fairness": {}}),
        ("change.high_priority_threshold", {"set_fairness": {"high_priority_threshold": 2**31 - 1}}),
        ("change.max_timeslice_tokens", {"set_fairness": {"max_timeslice_tokens": 2**32 - 1}}),
        ("worker_id", {"drain": {"worker_id": "a b"}}),
        ("worker_id", {"get_drain": {}}),
        ("hand_over_after_ms", {"drain": {"worker_id": "w", "hand_over_after_ms": 2**32 - 1}}),
    ],
)
def test_an_administrators_request_out_of_range_is_refused(field: str, request_: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        checks.check_admin(scheduler_pb2.SchedulerAdminRequest(**request_))
    assert refused.value.field == field


def test_chunks_that_no_worker_sends_are_not_read_from_the_replay_buffer() -> None:
    good = tokens_pb2.TokenChunk(request_id="r", epoch=1, token_ids=[5])
    highest = tokens_pb2.TokenChunk(epoch=2**32 - 1, token_ids=[6])
    far = tokens_pb2.TokenChunk(epoch=1, offset=2**32 - 1)
    odd = tokens_pb2.TokenChunk(epoch=1)
    odd.finished.reason = generation_pb2.FinishReason.ValueType(99)
    payloads = [chunk.SerializeToString() for chunk in (highest, good, far, odd)]
    assert decode([b"\xff", *payloads]) == [good]
