"""Trace contexts, spans that go to a file, and tracing that is off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from inferflux.common import tracing
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.process.settings import ServiceSettings, load
from inferflux.common.tracing import Kind, TraceContext, open_tracer, parse, valid
from inferflux.common.tracing.exporters import SayingOnce
from inferflux.common.tracing.sdk import SdkTracer

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traces.jsonl"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


def read(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        yield json.loads(line)


def test_a_traceparent_is_read_and_written() -> None:
    context = parse(PARENT)
    assert context == TraceContext(TRACE, SPAN, 1)
    assert context.traceparent == PARENT


def test_a_later_version_is_read_as_the_first() -> None:
    assert valid(f"01-{TRACE}-{SPAN}-00-more") == f"00-{TRACE}-{SPAN}-00"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-x",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"{PARENT},{PARENT}",
    ],
)
def test_what_is_no_traceparent_is_ignored(text: str) -> None:
    assert parse(text) is None
    assert valid(text) == ""


async def test_off_only_passes_the_callers_context_on() -> None:
    tracer = open_tracer(load(ServiceSettings), "gateway")
    assert tracer is tracing.OFF
    assert not tracer.is_on
    span = tracer.start("chat", parent=PARENT)
    span.rename("chat demo")
    span.set({"a": 1})
    span.event("first_token")
    span.fail("cancelled")
    span.end()
    assert span.traceparent == PARENT
    assert tracer.start("chat", parent="nonsense").traceparent == ""
    await tracer.close()


@pytest.mark.parametrize("service", ["gateway", "scheduler", "worker"])
def test_a_service_without_traces_does_not_load_the_tracing_sdk(service: str) -> None:
    # redis-py imports parts of OpenTelemetry by itself.
    code = (
        f"import sys, inferflux.{service}.app, inferflux.common.tracing as t\n"
        "from inferflux.common.process.settings import ServiceSettings\n"
        "t.open_tracer(ServiceSettings(), 'x')\n"
        "loaded = ('inferflux.common.tracing.sdk', 'opentelemetry.exporter')\n"
        "sys.exit(any(m.startswith(loaded) for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_finished_spans_are_lines_of_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERFLUX_TRACE_FILE", str(path))
    tracer = open_tracer(load(ServiceSettings), "gateway")
    assert tracer.is_on
    outer = tracer.start("chat", parent=PARENT, kind=Kind.SERVER, attributes={"gen_ai.request.model": "m"})
    outer.rename("chat m")
    outer.event("first_token", {"tokens": 1})
    inner = tracer.start("scheduler.queue", parent=outer.traceparent, at_s=1_700_000_000.25)
    inner.end(1_700_000_000.75)
    outer.fail("no_worker", "no worker has served m for 10 s")
    outer.end()
    outer.end()
    tracer.start("never ended")
    await tracer.close()

    queue, chat = read(path)
    assert (chat["service"], chat["name"], chat["kind"]) == ("gateway", "chat m", "server")
    assert (chat["trace_id"], chat["parent_id"]) == (TRACE, SPAN)
    assert chat["attributes"] == {"gen_ai.request.model": "m", "error.type": "no_worker"}
    assert chat["error"] == "no worker has served m for 10 s"
    assert [(e["name"], e["attributes"]) for e in chat["events"]] == [("first_token", {"tokens": 1})]
    assert outer.traceparent == f"00-{TRACE}-{chat['span_id']}-01"
    assert (queue["trace_id"], queue["parent_id"]) == (TRACE, chat["span_id"])
    assert (queue["start_unix_ns"], queue["duration_ms"]) == (1_700_000_000_250_000_000, 500.0)
    assert "error" not in queue


async def test_a_span_without_a_parent_starts_a_trace(path: Path) -> None:
    tracer = SdkTracer("gateway", path=str(path))
    first, second = tracer.start("a"), tracer.start("b", parent="00-garbage")
    first.end()
    second.end()
    await tracer.close()
    a, b = read(path)
    assert a["trace_id"] != b["trace_id"]
    assert a["parent_id"] == b["parent_id"] == ""


async def test_a_caller_who_does_not_sample_is_heeded(path: Path) -> None:
    tracer = SdkTracer("gateway", path=str(path))
    span = tracer.start("chat", parent=f"00-{TRACE}-{SPAN}-00")
    assert span.traceparent.startswith(f"00-{TRACE}-")
    assert span.traceparent.endswith("-00")
    span.end()
    await tracer.close()
    assert path.read_text() == ""


async def test_processes_share_a_file(path: Path) -> None:
    tracers = [SdkTracer(name, path=str(path)) for name in ("gateway", "worker")]
    for tracer in tracers:
        tracer.start("x").end()
        await tracer.close()
    assert [span["service"] for span in read(path)] == ["gateway", "worker"]


async def test_long_texts_are_cut(path: Path) -> None:
    tracer = SdkTracer("gateway", path=str(path))
    tracer.start("x", attributes={"gen_ai.request.model": "m" * 10_000}).end()
    await tracer.close()
    (span,) = read(path)
    assert len(span["attributes"]["gen_ai.request.model"]) == 512


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"INFERFLUX_TRACE_FILE.*directory") as caught:
        SdkTracer("gateway", path=str(tmp_path / "missing" / "traces.jsonl"))
    assert caught.value.field == "INFERFLUX_TRACE_FILE"


def test_what_opentelemetry_cannot_use_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
    with pytest.raises(InvalidArgument, match="soon"):
        SdkTracer("gateway", endpoint="http://127.0.0.1:4317")


async def test_a_collector_that_does_not_answer_delays_nothing() -> None:
    tracer = SdkTracer("gateway", endpoint="http://127.0.0.1:9")
    started = time.monotonic()
    for _ in range(100):
        tracer.start("x").end()
    await tracer.close(0.2)
    assert time.monotonic() - started < 5  # the exporter itself would try for ten


class Moody(SpanExporter):
    """Takes spans when it is told to."""

    def __init__(self) -> None:
        self.is_well = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002
        return SpanExportResult.SUCCESS if self.is_well else SpanExportResult.FAILURE


def test_a_collector_that_is_away_is_logged_once() -> None:
    moody = Moody()
    exporter = SayingOnce(moody, "http://collector:4317")
    batch: list[ReadableSpan] = []
    with structlog.testing.capture_logs() as lines:
        for is_well in (False, False, True, True, False):
            moody.is_well = is_well
            exporter.export(batch)
    assert [line["log_level"] for line in lines] == ["warning", "info", "warning"]
    assert lines[0]["target"] == "http://collector:4317"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/v1/traces"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
    ],
)
def test_a_bad_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit):
        load(ServiceSettings)
    assert capsys.readouterr().err.startswith(f"{variable}: ")


@pytest.mark.parametrize("url", ["http://collector:4317", "https://otel.example/", "http://[::1]:4317"])
def test_a_collectors_url_is_taken(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    assert load(ServiceSettings).otlp_endpoint == url
