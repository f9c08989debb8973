"""A client's trace goes on through the gateway: in its span, in the job, in the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness.gateway import Backend, GatewayProcess, StartGateway, Stream, finished, tokens
from harness.traces import Caller, events, trace

from inferflux.common.calls import grpc_client
from inferflux.v1 import inference_pb2

WAIT_S = 20.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traces.jsonl"


@pytest.fixture
async def traced(start_gateway: StartGateway, nats_url: str, backend: Backend, path: Path) -> GatewayProcess:
    """A gateway that writes its spans to `path`."""
    return await start_gateway(nats_url, INFERFLUX_TRACE_FILE=str(path))


def generate(gateway: GatewayProcess, key: str, request_id: str, traceparent: str, **fields: Any) -> Stream:
    request = inference_pb2.GenerateRequest(**({"model": "demo", "text": "hello"} | fields))
    metadata = grpc_client.outgoing(api_key=key, request_id=request_id, traceparent=traceparent)
    return Stream(gateway.inference.Generate(request, metadata=metadata, timeout=WAIT_S))


async def test_a_request_has_a_span_in_its_clients_trace_and_its_job_goes_on_from_there(
    traced: GatewayProcess, backend: Backend, key: str, path: Path
) -> None:
    caller = Caller()
    stream = generate(traced, key, "traced-1", caller.traceparent, priority=7)
    job = await backend.job("traced-1")
    headers = backend.headers("traced-1")
    await backend.finish(job, n=4)
    await stream.rest()

    span = (await trace(path, caller.trace_id, "generate demo"))["generate demo"]
    assert (span["service"], span["kind"], span["parent_id"]) == ("gateway", "server", caller.span_id)
    assert headers["traceparent"] == f"00-{caller.trace_id}-{span['span_id']}-01"
    assert events(span) == ["admitted", "prepared", "queued", "first_token"]
    attributes = span["attributes"]
    assert attributes["gen_ai.operation.name"] == "text_completion"
    assert attributes["gen_ai.request.model"] == "demo"
    assert attributes["gen_ai.usage.output_tokens"] == 4
    assert attributes["gen_ai.usage.input_tokens"] == 5
    assert attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert attributes["inferflux.request_id"] == "traced-1"
    assert attributes["inferflux.tenant"] == "acme"
    assert (attributes["inferflux.priority"], attributes["inferflux.asked_priority"]) == (4, 7)
    assert "error" not in span
    (audit,) = traced.audit("traced-1")
    assert audit["trace_id"] == caller.trace_id


async def test_a_refused_request_has_a_span_that_says_why(
    traced: GatewayProcess, key: str, path: Path
) -> None:
    caller, stranger = Caller(), Caller()
    await generate(traced, key, "traced-2", caller.traceparent, priority=999).error()
    await generate(traced, "ifx_unknown", "traced-3", stranger.traceparent).error()
    span = (await trace(path, caller.trace_id, "generate"))["generate"]
    assert span["attributes"]["error.type"] == "invalid_argument"
    assert "priority" in span["error"]
    later = Caller()
    await generate(traced, key, "traced-3b", later.traceparent, priority=999).error()
    await trace(path, later.trace_id, "generate")
    assert stranger.trace_id not in path.read_text()  # strangers make no spans


async def test_a_client_that_leaves_ends_its_span(
    traced: GatewayProcess, backend: Backend, key: str, path: Path
) -> None:
    caller = Caller()
    stream = generate(traced, key, "traced-4", caller.traceparent)
    job = await backend.job("traced-4")
    await backend.say(job, tokens(0))
    await stream.until_tokens()
    stream.cancel()
    span = (await trace(path, caller.trace_id, "generate demo"))["generate demo"]
    assert span["attributes"]["inferflux.outcome"] == "cancelled"
    assert span["attributes"]["gen_ai.usage.output_tokens"] == 1
    await backend.done("traced-4")


async def test_without_traces_the_clients_context_is_passed_on_and_garbage_is_not(
    gateway: GatewayProcess, backend: Backend, key: str
) -> None:
    caller = Caller()
    for request_id, given in (("traced-5", caller.traceparent), ("traced-6", "00-garbage")):
        stream = generate(gateway, key, request_id, given)
        job = await backend.job(request_id)
        headers = backend.headers(request_id)
        assert headers.get("traceparent", "") == (given if given == caller.traceparent else "")
        await backend.say(job, finished(0))
        await backend.done(request_id)
        await stream.rest()
    (audit,) = gateway.audit("traced-5")
    assert audit["trace_id"] == caller.trace_id


async def test_a_collector_that_is_away_costs_a_log_line(
    start_gateway: StartGateway, nats_url: str, backend: Backend, key: str
) -> None:
    gateway = await start_gateway(
        nats_url, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", OTEL_BSP_SCHEDULE_DELAY="10"
    )
    for request_id in ("traced-7", "traced-8"):
        stream = generate(gateway, key, request_id, Caller().traceparent)
        await backend.finish(await backend.job(request_id), n=2)
        await stream.rest()
    gateway.terminate()
    assert await gateway.ended() == 0
    told = [line["event"] for line in gateway.log_lines() if line["level"] in ("warning", "error")]
    assert told in (
        ["the last spans may be lost"],
        ["traces are lost: they are not taken"],
        ["traces are lost: they are not taken", "the last spans may be lost"],
    )
