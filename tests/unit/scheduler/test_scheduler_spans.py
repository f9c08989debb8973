"""The scheduler's spans: which actions leave one, how long it is, and whose trace it is in."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from harness.traces import Caller

from inferflux.common import tracing
from inferflux.common.bus import Job
from inferflux.common.contract import subjects
from inferflux.common.tracing.sdk import SdkTracer
from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.jobs import RequestKey
from inferflux.scheduler.spans import SchedulerSpans, traceparent_of
from inferflux.v1 import worker_pb2

KEY = RequestKey("acme", "one")
NOW = 1_700_000_000.0


def job(traceparent: str = "") -> Job:
    delivery = cast("Any", SimpleNamespace(key=(1, 1), sequence=1, deliveries=1))
    return Job(cast("Any", None), delivery, b"", {"traceparent": traceparent}, "reply")


def dispatch(
    handle: object, *, phase: worker_pb2.Phase.ValueType = worker_pb2.PHASE_PREFILL, epoch: int = 1
) -> actions.Dispatch:
    batch = worker_pb2.RequestBatch(phase=phase)
    item = batch.items.add(slot=3)
    item.request.request_id = KEY.request_id
    item.request.epoch = epoch
    item.request.enqueued_unix_ms = int((NOW - 2) * 1000)
    return actions.Dispatch("w1", batch, "demo", (2.0,), (handle,))


class Trace:
    """Spans of one client's request, at times the test sets."""

    def __init__(self, path: Path) -> None:
        self.now = NOW
        self.caller = Caller()
        self.job = job(self.caller.traceparent)
        self._path = path
        self._tracer = SdkTracer("scheduler", path=str(path))
        self.spans = SchedulerSpans(self._tracer, lambda: self.now)

    async def all(self) -> list[dict[str, Any]]:
        await self._tracer.close()
        lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        assert all(line["trace_id"] == self.caller.trace_id for line in lines)
        assert all(line["parent_id"] == self.caller.span_id for line in lines)
        return lines


@pytest.fixture
async def trace(tmp_path: Path) -> Trace:
    return Trace(tmp_path / "traces.jsonl")


async def test_the_wait_in_the_queue_is_a_span(trace: Trace) -> None:
    trace.spans.note(dispatch(trace.job))
    (queue,) = await trace.all()
    assert (queue["name"], queue["kind"], queue["duration_ms"]) == ("scheduler.queue", "consumer", 2000)
    assert queue["attributes"]["inferflux.worker_id"] == "w1"
    assert queue["attributes"]["inferflux.slot"] == 3
    assert queue["attributes"]["messaging.destination.name"] == subjects.jobs("demo")


async def test_the_first_wait_says_when_the_job_was_received(trace: Trace) -> None:
    trace.job.received_unix_s = NOW - 0.5
    trace.spans.note(dispatch(trace.job))
    trace.now = NOW + 5
    trace.spans.note(dispatch(trace.job, epoch=2))
    first, again = await trace.all()
    assert [(event["name"], event["after_ms"]) for event in first["events"]] == [("received", 1500)]
    assert again["events"] == []


async def test_after_a_retry_the_wait_begins_anew(trace: Trace) -> None:
    trace.spans.note(dispatch(trace.job))
    trace.now = NOW + 5
    trace.spans.note(actions.CountRetry(KEY, "engine_died", trace.job))
    trace.now = NOW + 6
    trace.spans.note(dispatch(trace.job, epoch=2))
    _, retry, again = await trace.all()
    assert (retry["name"], retry["duration_ms"]) == ("scheduler.retry", 0)
    assert retry["attributes"] == {"inferflux.reason": "engine_died"}
    assert (again["name"], again["duration_ms"]) == ("scheduler.queue", 1000)
    assert again["attributes"]["inferflux.epoch"] == 2


async def test_runs_that_end_and_resume_are_spans(trace: Trace) -> None:
    other = RequestKey("acme", "urgent")
    trace.spans.note(actions.Yielded(KEY, trace.job, "w1", "timeslice"))
    trace.spans.note(actions.Preempted(KEY, trace.job, "w1", by=other))
    trace.now = NOW + 3
    trace.spans.note(actions.Resumed(KEY, trace.job, "w1", 3.0, "parked"))
    trace.spans.note(dispatch(trace.job, phase=worker_pb2.PHASE_DECODE))
    spans = await trace.all()
    assert [(s["name"], s["duration_ms"]) for s in spans] == [
        ("scheduler.fairness.yield", 0),
        ("scheduler.fairness.preempt", 0),
        ("scheduler.fairness.resume", 3000),
    ]
    assert spans[0]["attributes"]["inferflux.reason"] == "timeslice"
    assert spans[1]["attributes"]["inferflux.preempted_by"] == "urgent"
    assert spans[2]["attributes"]["inferflux.residence"] == "parked"


async def test_a_request_that_yielded_and_goes_elsewhere_waited_since_it_yielded(trace: Trace) -> None:
    trace.spans.note(dispatch(trace.job))
    trace.now = NOW + 10
    trace.spans.note(actions.Yielded(KEY, trace.job, "w1", "memory"))
    trace.now = NOW + 14
    trace.spans.note(dispatch(trace.job, epoch=2))
    spans = await trace.all()
    assert (spans[-1]["name"], spans[-1]["duration_ms"]) == ("scheduler.queue", 4000)


async def test_a_clock_that_is_behind_the_gateways_makes_no_negative_wait(trace: Trace) -> None:
    trace.now = NOW - 60
    trace.spans.note(dispatch(trace.job))
    (queue,) = await trace.all()
    assert queue["duration_ms"] == 0


async def test_a_request_without_a_trace_leaves_none(trace: Trace) -> None:
    untraced = job()
    trace.spans.note(dispatch(untraced))
    trace.spans.note(actions.CountRetry(KEY, "vanished", untraced))
    trace.spans.note(actions.Yielded(KEY, object(), "w1", "timeslice"))
    assert await trace.all() == []


def test_without_traces_nothing_is_noted() -> None:
    spans = SchedulerSpans(tracing.OFF, clock=lambda: pytest.fail("asked for the time"))
    spans.note(dispatch(job(Caller().traceparent)))


def test_the_trace_context_of_a_job_is_its_header_if_that_is_one() -> None:
    caller = Caller()
    assert traceparent_of(job(caller.traceparent)) == caller.traceparent
    assert traceparent_of(job("00-garbage")) == ""
    assert traceparent_of(None) == ""
