"""What the scheduler logs of a request names the request, whatever happens to it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from inferflux.common.bus import Job
from inferflux.scheduler import request_log
from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.jobs import RequestKey
from inferflux.v1 import worker_pb2

KEY = RequestKey("acme", "one")
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


def job(traceparent: str = f"00-{TRACE_ID}-b7ad6b7169203331-01") -> Job:
    delivery = cast("Any", SimpleNamespace(key=(1, 1), sequence=1, deliveries=1))
    return Job(cast("Any", None), delivery, b"", {"traceparent": traceparent}, "reply")


def dispatch(handle: object) -> actions.Dispatch:
    batch = worker_pb2.RequestBatch()
    item = batch.items.add()
    item.request.tenant, item.request.request_id = KEY
    return actions.Dispatch("w1", batch, "demo", (2.0,), (handle,))


ACTIONS = [
    dispatch(job()),
    actions.CountRetry(KEY, "engine_died", job()),
    actions.CountRefusal(KEY, job(), "w1", "no_memory"),
    actions.CountUnread(KEY, job()),
    actions.Preempted(KEY, job(), "w1", by=RequestKey("acme", "two")),
    actions.Yielded(KEY, job(), "w1", "timeslice"),
    actions.Resumed(KEY, job(), "w1", 0.5, "parked"),
    actions.Ack(KEY, job(), "demo", "stop"),
]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: type(action).__name__)
def test_a_line_has_request_id_tenant_and_trace_id(action: actions.Action) -> None:
    with capture_logs() as lines:
        request_log.note(action)
    (line,) = lines
    assert (line["request_id"], line["tenant"], line["trace_id"]) == ("one", "acme", TRACE_ID)


def test_a_request_without_a_trace_has_no_trace_id() -> None:
    with capture_logs() as lines:
        request_log.note(actions.Ack(KEY, job(traceparent=""), "demo", "stop"))
        request_log.queued(KEY, "demo", job(traceparent="nonsense"))
    assert [line["request_id"] for line in lines] == ["one", "one"]
    assert not any("trace_id" in line for line in lines)


def test_a_request_that_is_served_without_trouble_has_one_line_at_info() -> None:
    with capture_logs() as lines:
        request_log.queued(KEY, "demo", job())
        request_log.note(dispatch(job()))
        request_log.note(actions.CountTokens(0, 5))
        request_log.note(actions.Ack(KEY, job(), "demo", "length"))
    assert [line["event"] for line in lines if line["log_level"] == "info"] == ["a request has finished"]
    assert lines[-1]["outcome"] == "length"
