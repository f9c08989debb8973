"""The stages of requests, from spans."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from benchmarks.load.request_path import STAGES, Asked, stages, traces_of

NOW = 1_700_000_000.0


def span(
    service: str, name: str, *, at_ms: float, lasts_ms: float, trace_id: str = "t", **events_ms: float
) -> str:
    """A line of the file; `events_ms` are counted from the span's begin."""
    events: list[dict[str, Any]] = [
        {"name": event, "after_ms": after, "attributes": {}} for event, after in events_ms.items()
    ]
    start_ns = round((NOW + at_ms / 1000) * 1e9)
    line = {
        "service": service,
        "name": name,
        "trace_id": trace_id,
        "start_unix_ns": start_ns,
        "duration_ms": lasts_ms,
        "events": events,
    }
    return json.dumps(line)


LINES = [
    span("worker", "worker.run", at_ms=9, lasts_ms=9, prefill_chunk=3, first_token=4),
    span("scheduler", "scheduler.queue", at_ms=5, lasts_ms=3, received=2),
    span("gateway", "chat demo", at_ms=1, lasts_ms=20, admitted=2, prepared=3, queued=4, first_token=14),
    span("gateway", "chat demo", at_ms=1, lasts_ms=20, trace_id="other", admitted=2),
]
ASKED = Asked("t", sent=NOW, sampled=NOW + 0.0115, arrived=NOW + 0.017)


def test_stages_follow_one_another_from_the_client_to_its_first_token() -> None:
    found = stages(traces_of(LINES, [ASKED]))
    assert list(found.values()) == pytest.approx([1, 2, 1, 3, 1, 1, 2.5, 1.5, 2, 2], abs=0.01)
    assert sum(found.values()) == pytest.approx(ASKED.ttft_s * 1000, abs=0.01)


def test_a_request_that_misses_a_moment_counts_in_no_stage() -> None:
    traces = traces_of(LINES, [ASKED, Asked("other", NOW, NOW, NOW), Asked("unknown", NOW)])
    assert stages(traces) == stages(traces[:1])


def test_of_no_request_every_stage_is_unknown() -> None:
    found = stages([])
    assert list(found) == [stage for stage, _ in STAGES]
    assert all(math.isnan(ms) for ms in found.values())
