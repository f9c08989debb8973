"""Exporters of finished spans. They run in a thread of the SDK's, which takes it if one blocks."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import StatusCode

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.process import logs

log = logs.get("tracing")


class SayingOnce(SpanExporter):
    """Says once when spans are not taken, and once when they are again."""

    def __init__(self, inner: SpanExporter, target: str) -> None:
        self._inner = inner
        self._target = target
        self._is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        is_failing = result is not SpanExportResult.SUCCESS
        if is_failing and not self._is_failing:
            log.warning("traces are lost: they are not taken", target=self._target)
        elif self._is_failing and not is_failing:
            log.info("traces are taken again", target=self._target)
        self._is_failing = is_failing
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()


class FileExporter(SpanExporter):
    """Appends a line of JSON per finished span. Several processes may share a file.

    Raises:
        InvalidArgument: the file cannot be opened for writing.
    """

    def __init__(self, path: str, service: str) -> None:
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            message = f"INFERFLUX_TRACE_FILE: cannot write {path}: {error.strerror}"
            raise InvalidArgument(message, field="INFERFLUX_TRACE_FILE") from None
        self._service = service

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        lines = "".join(json.dumps(to_json(span, self._service)) + "\n" for span in spans).encode()
        try:
            is_whole = os.write(self._fd, lines) == len(lines)
        except OSError:
            is_whole = False
        return SpanExportResult.SUCCESS if is_whole else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        os.close(self._fd)


def to_json(span: ReadableSpan, service: str) -> dict[str, Any]:
    """A finished span as a line of the file has it: times in nanoseconds since the Unix epoch."""
    own, parent = span.context, span.parent
    start_ns, end_ns = span.start_time or 0, span.end_time or 0
    line: dict[str, Any] = {
        "service": service,
        "name": span.name,
        "trace_id": f"{own.trace_id:032x}",
        "span_id": f"{own.span_id:016x}",
        "parent_id": f"{parent.span_id:016x}" if parent is not None else "",
        "kind": span.kind.name.lower(),
        "start_unix_ns": start_ns,
        "duration_ms": round((end_ns - start_ns) / 1e6, 3),
        "attributes": dict(span.attributes or {}),
        "events": [
            {
                "name": event.name,
                "after_ms": round((event.timestamp - start_ns) / 1e6, 3),
                "attributes": dict(event.attributes or {}),
            }
            for event in span.events
        ],
    }
    if span.status.status_code is StatusCode.ERROR:
        line["error"] = span.status.description or ""
    return line
