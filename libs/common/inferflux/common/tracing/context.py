"""The W3C trace context, as the header `traceparent` carries it: https://www.w3.org/TR/trace-context/"""

from __future__ import annotations

import re
from dataclasses import dataclass

HEADER = "traceparent"

_FORMAT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 0x01


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span as others see it: lower-case hex ids of 32 and 16 digits, neither of them all zeros."""

    trace_id: str
    span_id: str
    flags: int = _SAMPLED

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parse(traceparent: str) -> TraceContext | None:
    """Read a `traceparent`; None for what is not one, which W3C wants ignored."""
    found = _FORMAT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return TraceContext(trace_id, span_id, int(flags, 16))


def trace_id_of(traceparent: str) -> str:
    """The trace id of a `traceparent`; "" for what is none."""
    context = parse(traceparent) if traceparent else None
    return context.trace_id if context is not None else ""


def valid(traceparent: str) -> str:
    """The same context as a header of version 00; "" for what is none."""
    context = parse(traceparent) if traceparent else None
    return context.traceparent if context is not None else ""
