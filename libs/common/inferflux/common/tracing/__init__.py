"""Traces: one per request, from the client over gateway, scheduler and worker to the engine's steps.

Off unless a collector or a file is named, and then nothing of OpenTelemetry is imported: spans do nothing but
pass the caller's trace context on.
"""

from __future__ import annotations

from inferflux.common.process.settings import ServiceSettings

from . import names
from .context import TraceContext, parse, trace_id_of, valid
from .spans import OFF, Attributes, Kind, Span, Tracer

__all__ = [
    "OFF",
    "Attributes",
    "Kind",
    "Span",
    "TraceContext",
    "Tracer",
    "names",
    "open_tracer",
    "parse",
    "trace_id_of",
    "valid",
]


def open_tracer(settings: ServiceSettings, service: str) -> Tracer:
    """The tracer of a process; close it when everything that makes spans has ended.

    Raises:
        InvalidArgument: the file cannot be written, or OpenTelemetry cannot use one of its variables.
    """
    if not (settings.otlp_endpoint or settings.trace_file):
        return OFF
    from .sdk import SdkTracer

    return SdkTracer(service, endpoint=settings.otlp_endpoint, path=settings.trace_file)
