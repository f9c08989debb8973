"""Spans reach a collector over OTLP, and no request waits for one that hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from harness.traces import Caller
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from inferflux.common.tracing import Kind, names
from inferflux.common.tracing.sdk import SdkTracer


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans, unless it hangs."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.metadata: dict[str, str] = {}
        self.hangs = False
        self.endpoint = ""

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.hangs:
            await asyncio.Event().wait()
        self.metadata = dict(context.invocation_metadata())
        self.requests.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    made = Collector()
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(made, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    made.endpoint = f"http://127.0.0.1:{port}"
    yield made
    await server.stop(0)


async def test_a_collector_gets_finished_spans(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=serving")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    caller = Caller()
    tracer = SdkTracer("gateway", endpoint=collector.endpoint)
    span = tracer.start("chat demo", parent=caller.traceparent, kind=Kind.SERVER)
    span.set({names.OUTPUT_TOKENS: 7, names.FINISH_REASONS: ["stop"]})
    span.event("first_token")
    span.end()
    await tracer.close(10)

    (request,) = collector.requests
    (spans,) = request.resource_spans
    resource = {a.key: a.value.string_value for a in spans.resource.attributes}
    assert resource["service.name"] == "inferflux-gateway"
    assert resource["deployment.environment.name"] == "test"
    assert collector.metadata["x-team"] == "serving"
    (sent,) = spans.scope_spans[0].spans
    assert (sent.name, sent.trace_id.hex()) == ("chat demo", caller.trace_id)
    assert sent.parent_span_id.hex() == caller.span_id
    assert {a.key: a.value.int_value for a in sent.attributes}[names.OUTPUT_TOKENS] == 7
    assert [event.name for event in sent.events] == ["first_token"]


async def test_a_collector_that_hangs_is_left_alone(collector: Collector) -> None:
    collector.hangs = True
    tracer = SdkTracer("gateway", endpoint=collector.endpoint)
    tracer.start("chat").end()
    started = time.monotonic()
    await tracer.close(0.3)
    assert time.monotonic() - started < 5  # the exporter itself would wait for ten
