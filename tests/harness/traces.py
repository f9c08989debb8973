"""Reads the file that spans are written to."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WAIT_S = 20.0

Span = dict[str, Any]


@dataclass(frozen=True)
class Caller:
    """A client that traces: the context it sends, and the ids that its trace's spans must have."""

    trace_id: str = field(default_factory=lambda: secrets.token_hex(16))
    span_id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"


async def trace(path: Path, trace_id: str, *names: str) -> dict[str, Span]:
    """The finished spans of a trace by name, once all of `names` are there, each as often as it is named.

    Of several of one name it is the last that is given.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        lines = path.read_text().splitlines() if path.exists() else []
        spans = [span for span in map(json.loads, lines) if span["trace_id"] == trace_id]
        found = [span["name"] for span in spans]
        if Counter(names) <= Counter(found):
            return {span["name"]: span for span in spans}
        assert time.monotonic() < deadline, f"only {sorted(found)} of {sorted(names)} are there"
        await asyncio.sleep(0.02)


def events(span: Span) -> list[str]:
    return [event["name"] for event in span["events"]]
