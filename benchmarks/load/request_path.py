"""The stages of requests on their way to the first token, from the spans that services write. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferflux.common.tracing import names

from .stats import median

STAGES: Sequence[tuple[str, str]] = (
    ("client to gateway", "called"),
    ("policy admits", "admitted"),
    ("prompt is tokenized", "prepared"),
    ("gateway to scheduler", "received"),
    ("scheduler", "dispatched"),
    ("scheduler to worker", "taken_up"),
    ("engine: to the first token", "sampled"),
    ("engine to worker", "emitted"),
    ("worker to gateway", "relayed"),
    ("gateway to client", "arrived"),
)
"""Each stage, and the moment that ends it. The first begins when the client sends."""

Moments = dict[str, float]
"""Moments of a request by name, in Unix seconds."""

_SENT = "sent"
# Of a service's span: the moments of its begin and end, and of its events.
_OF_GATEWAY = {"admitted": "admitted", "prepared": "prepared", "first_token": "relayed"}
_OF_SCHEDULER = {"received": "received"}
_OF_WORKER = {"first_token": "emitted"}


@dataclass(slots=True)
class Asked:
    """A request as its client saw it, in Unix seconds.

    Attributes:
        sampled: when the engine sampled the first token, as its chunk says.
    """

    trace_id: str
    sent: float
    sampled: float = 0.0
    arrived: float = 0.0

    @property
    def ttft_s(self) -> float:
        return self.arrived - self.sent


def traces_of(lines: Iterable[str], asked: Sequence[Asked]) -> list[Moments]:
    """The moments of each request, in the order of `asked`.

    Args:
        lines: of the file that spans are written to.
    """
    spans: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for line in lines:
        span = json.loads(line)
        spans[span["trace_id"]].append(span)
    return [_moments(each, spans[each.trace_id]) for each in asked]


def _moments(asked: Asked, spans: Sequence[Mapping[str, Any]]) -> Moments:
    found: Moments = {_SENT: asked.sent, "sampled": asked.sampled, "arrived": asked.arrived}
    for span in spans:
        began = span["start_unix_ns"] / 1e9
        if span["service"] == "gateway":
            found["called"] = began
            events = _OF_GATEWAY
        elif span["name"] == names.QUEUE:
            found["dispatched"] = began + span["duration_ms"] / 1000
            events = _OF_SCHEDULER
        elif span["name"] == names.RUN:
            found["taken_up"] = began
            events = _OF_WORKER
        else:
            continue
        for event in span["events"]:
            if event["name"] in events:
                found[events[event["name"]]] = began + event["after_ms"] / 1000
    return found


def stages(traces: Iterable[Moments]) -> dict[str, float]:
    """The median of each stage in ms, over the requests that have every moment; nan where none has."""
    moments = [_SENT, *(end for _, end in STAGES)]
    whole = [trace for trace in traces if trace.keys() >= set(moments)]
    return {
        stage: median((trace[end] - trace[begin]) * 1000 for trace in whole)
        for begin, (stage, end) in zip(moments, STAGES, strict=False)
    }
