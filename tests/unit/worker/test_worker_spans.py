"""The worker's spans: the time that a request is resident, with what the engine did meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness.traces import Caller, events

from inferflux.common import tracing
from inferflux.common.tracing.sdk import SdkTracer
from inferflux.v1 import engine_pb2, scheduler_pb2, worker_pb2
from inferflux.worker.model.residents import Resident
from inferflux.worker.model.spans import WorkerSpans

RUNNING = scheduler_pb2.RESIDENCE_RUNNING
KEY = "acme.one"


class Residents:
    """A worker's spans, and its resident requests of one client."""

    def __init__(self, path: Path) -> None:
        self.caller = Caller()
        self._path = path
        self._tracer = SdkTracer("worker", path=str(path))
        self.spans = WorkerSpans(self._tracer, "w1")

    def take_up(self, *, epoch: int = 1, generated: int = 0, traceparent: str | None = None) -> Resident:
        resident = Resident("one", "acme", epoch, prompt_tokens=40, generated_tokens=generated)
        request = scheduler_pb2.InferenceRequest(
            request_id="one",
            tenant="acme",
            model="demo",
            epoch=epoch,
            traceparent=self.caller.traceparent if traceparent is None else traceparent,
        )
        self.spans.take_up(resident, worker_pb2.BatchItem(request=request, slot=2))
        return resident

    def step(self, **reports: Any) -> None:
        self.spans.on_step(engine_pb2.StepReport(**reports))

    async def all(self) -> list[dict[str, Any]]:
        await self._tracer.close()
        return [json.loads(line) for line in self._path.read_text().splitlines()]


@pytest.fixture
async def residents(tmp_path: Path) -> Residents:
    return Residents(tmp_path / "traces.jsonl")


def emission(generated: int, epoch: int = 1) -> engine_pb2.Emission:
    return engine_pb2.Emission(key=KEY, epoch=epoch, generated_tokens=generated)


def ended(outcome: str = "stop", epoch: int = 1) -> engine_pb2.EngineFinished:
    return engine_pb2.EngineFinished(key=KEY, epoch=epoch, outcome=outcome, completion_tokens=2)


def yielded(reason: scheduler_pb2.YieldReason.ValueType) -> engine_pb2.EngineResidence:
    parked = scheduler_pb2.RESIDENCE_PARKED
    return engine_pb2.EngineResidence(key=KEY, epoch=1, reason=reason, residence=parked)


async def test_a_run_is_a_span_with_what_the_engine_did(residents: Residents) -> None:
    resident = residents.take_up()
    residents.step(prefilled=[engine_pb2.Prefilled(key=KEY, epoch=1, computed_tokens=16)])
    residents.step(emissions=[emission(0)])  # that it has started
    residents.step(emissions=[emission(1)], residences=[yielded(scheduler_pb2.YIELD_REASON_TIMESLICE)])
    residents.spans.resumed(resident, 1)
    residents.step(residences=[engine_pb2.EngineResidence(key=KEY, epoch=1, run=1, residence=RUNNING)])
    residents.step(emissions=[emission(2)], finished=[ended()])
    (span,) = await residents.all()
    assert (span["name"], span["trace_id"]) == ("worker.run", residents.caller.trace_id)
    assert span["parent_id"] == residents.caller.span_id
    assert events(span) == ["prefill_chunk", "first_token", "yielded", "resumed"]
    assert span["events"][0]["attributes"] == {"inferflux.computed_tokens": 16}
    assert span["events"][2]["attributes"] == {
        "inferflux.reason": "timeslice",
        "inferflux.residence": "parked",
    }
    attributes = span["attributes"]
    assert (attributes["inferflux.worker_id"], attributes["inferflux.slot"]) == ("w1", 2)
    assert attributes["inferflux.outcome"] == "stop"
    assert attributes["gen_ai.usage.output_tokens"] == 2
    assert "error" not in span


async def test_a_retrys_first_token_is_the_first_new_one(residents: Residents) -> None:
    residents.take_up(epoch=2, generated=5)
    residents.step(emissions=[emission(5, epoch=2)])
    residents.step(emissions=[emission(1, epoch=1)])  # of the epoch before
    residents.step(finished=[ended(epoch=2)])
    (span,) = await residents.all()
    assert events(span) == []


async def test_what_is_lost_says_how(residents: Residents) -> None:
    residents.spans.left(residents.take_up(), "dropped")
    residents.spans.lost([residents.take_up(epoch=2)], "the engine was ended by SIGSEGV")
    residents.take_up(epoch=3)
    residents.step(finished=[ended("context_full", epoch=3)])
    spans = await residents.all()
    outcomes = [s["attributes"]["inferflux.outcome"] for s in spans]
    assert outcomes == ["dropped", "engine_died", "context_full"]
    assert [s["attributes"].get("error.type") for s in spans] == [None, *outcomes[1:]]
    assert spans[1]["error"] == "the engine was ended by SIGSEGV"


async def test_a_request_without_a_trace_has_no_span(residents: Residents) -> None:
    resident = residents.take_up(traceparent="")
    residents.spans.resumed(resident, 1)
    residents.step(emissions=[emission(1)], finished=[ended()])
    residents.spans.left(resident, "dropped")
    assert await residents.all() == []


def test_without_traces_there_are_no_spans() -> None:
    spans = WorkerSpans(tracing.OFF, "w1")
    resident = Resident("one", "acme", 1, prompt_tokens=1)
    request = scheduler_pb2.InferenceRequest(traceparent=Caller().traceparent)
    spans.take_up(resident, worker_pb2.BatchItem(request=request))
    assert not spans._runs
