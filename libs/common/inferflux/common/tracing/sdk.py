"""Spans of OpenTelemetry's SDK. Imported only where traces are on."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace import Span as OtelSpan

from inferflux.api.channel_options import with_proxy
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.process import logs

from . import names
from .context import TraceContext, parse
from .exporters import FileExporter, SayingOnce
from .spans import Attributes, Kind, Span

log = logs.get("tracing")

_KINDS = {Kind.INTERNAL: SpanKind.INTERNAL, Kind.SERVER: SpanKind.SERVER, Kind.CONSUMER: SpanKind.CONSUMER}
# A file has a reader who waits; a collector gets larger batches, as OTEL_BSP_SCHEDULE_DELAY says.
_FILE_DELAY_MS = 200
_LIMITS = SpanLimits(max_events=256, max_span_attributes=64, max_span_attribute_length=512)


class SdkTracer:
    """Sends spans from a thread of the SDK's, in batches.

    Args:
        service: the resource's `service.name` is `inferflux-<service>`, unless OTEL_SERVICE_NAME is set.
        endpoint: of an OTLP collector over gRPC, a URL; "" for none.
        path: of a file for finished spans; "" for none.

    Raises:
        InvalidArgument: the file cannot be written, or a variable of OpenTelemetry's cannot be used.
    """

    is_on = True

    def __init__(self, service: str, *, endpoint: str = "", path: str = "") -> None:
        # Each would say of every batch that it is not taken, or of spans that they wait in vain; SayingOnce
        # says it once.
        logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)
        logging.getLogger("opentelemetry.sdk._shared_internal").setLevel(logging.ERROR)
        name = os.environ.get("OTEL_SERVICE_NAME") or f"inferflux-{service}"
        try:
            resource = Resource.create({SERVICE_NAME: name, "service.instance.id": f"{os.getpid()}"})
            provider = TracerProvider(resource=resource, span_limits=_LIMITS, shutdown_on_exit=False)
            if path:
                exporter = SayingOnce(FileExporter(path, service), path)
                provider.add_span_processor(
                    BatchSpanProcessor(exporter, schedule_delay_millis=_FILE_DELAY_MS)
                )
            if endpoint:
                provider.add_span_processor(BatchSpanProcessor(SayingOnce(_otlp(endpoint), endpoint)))
        except ValueError as error:
            raise InvalidArgument(f"OpenTelemetry cannot use its variables OTEL_...: {error}") from None
        self._provider = provider
        self._tracer = provider.get_tracer("inferflux")

    def start(
        self,
        name: str,
        *,
        parent: str = "",
        kind: Kind = Kind.INTERNAL,
        attributes: Attributes | None = None,
        at_s: float | None = None,
    ) -> Span:
        return SdkSpan(
            self._tracer.start_span(
                name,
                context=_context(parse(parent)),
                kind=_KINDS[kind],
                attributes=attributes,
                start_time=_ns(at_s),
                record_exception=False,
                set_status_on_exception=False,
            )
        )

    async def close(self, limit_s: float = 1.5) -> None:
        """Flush spans within `limit_s` seconds; the rest is lost. A daemon thread waits for the collector."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut_down, name="tracer close", daemon=True).start()
        try:
            await asyncio.wait_for(done.wait(), limit_s)
        except TimeoutError:
            log.warning("the last spans may be lost", limit_s=limit_s)


class SdkSpan:
    """One span of the SDK."""

    __slots__ = ("_span",)

    def __init__(self, span: OtelSpan) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        own = self._span.get_span_context()
        return TraceContext(f"{own.trace_id:032x}", f"{own.span_id:016x}", int(own.trace_flags)).traceparent

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def event(self, name: str, attributes: Attributes | None = None, *, at_s: float | None = None) -> None:
        self._span.add_event(name, attributes, _ns(at_s))

    def fail(self, error_type: str, message: str = "") -> None:
        self._span.set_attribute(names.ERROR_TYPE, error_type)
        self._span.set_status(Status(StatusCode.ERROR, message or error_type))

    def end(self, at_s: float | None = None) -> None:
        if self._span.is_recording():
            self._span.end(_ns(at_s))


def _otlp(endpoint: str) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    # The SDK types values as texts; gRPC wants a number.
    options: Any = with_proxy((), os.environ)
    return OTLPSpanExporter(endpoint=endpoint, channel_options=options)


def _context(parent: TraceContext | None) -> Context:
    """Parent context of a span: never the SDK's current span, which follows tasks and not requests."""
    if parent is None:
        return Context()
    span = SpanContext(
        trace_id=int(parent.trace_id, 16),
        span_id=int(parent.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(parent.flags),
    )
    return set_span_in_context(NonRecordingSpan(span), Context())


def _ns(at_s: float | None) -> int:
    return time.time_ns() if at_s is None else round(at_s * 1e6) * 1000
