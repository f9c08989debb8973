"""Moments of one request, and the figures that many of them add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from .stats import gaps, summary


@dataclass(frozen=True, slots=True)
class Objective:
    """Limits that a request must keep to count in the goodput.

    Attributes:
        ttft_s: longest time to the first token.
        mean_gap_s: longest mean time between two tokens.
    """

    ttft_s: float
    mean_gap_s: float


@dataclass(slots=True)
class Trace:
    """One request as its client saw it. Times are of time.perf_counter, in seconds.

    Attributes:
        arrivals_s: when each message with tokens arrived.
        sampled_to_received_s: per message, from the sampling of its last token to its arrival,
            where the server tells.
        tokens: how many were generated.
        ended_s: when the stream ended; 0 while it runs.
        error: why it failed; "" if it did not.
    """

    sent_s: float
    arrivals_s: list[float] = field(default_factory=list)
    sampled_to_received_s: list[float] = field(default_factory=list)
    tokens: int = 0
    ended_s: float = 0.0
    error: str = ""

    @property
    def ttft_s(self) -> float:
        """From sending to the first token's arrival."""
        return self.arrivals_s[0] - self.sent_s

    @property
    def mean_gap_s(self) -> float:
        """Mean time between two tokens, after the first; 0 of a single one."""
        between = self.arrivals_s[-1] - self.arrivals_s[0]
        return between / (self.tokens - 1) if self.tokens > 1 else 0.0

    def meets(self, objective: Objective) -> bool:
        """Return whether it was answered whole, and soon and steadily enough."""
        if self.error or not self.arrivals_s:
            return False
        return self.ttft_s <= objective.ttft_s and self.mean_gap_s <= objective.mean_gap_s

    @property
    def e2e_s(self) -> float:
        """From sending to the end of the stream."""
        return self.ended_s - self.sent_s


def totals(traces: Sequence[Trace], objective: Objective | None = None) -> dict[str, Any]:
    """The figures of a run: throughput from the first request sent to the last one ended, and latencies.

    Failed requests count in `failed` and in no latency. `itl_ms` is the time between messages with tokens.
    With an objective, `goodput_per_s` is how many requests that met it were answered per second.
    """
    good = [trace for trace in traces if not trace.error and trace.arrivals_s]
    errors = Counter(
        trace.error or "no token came" for trace in traces if trace.error or not trace.arrivals_s
    )
    tokens = sum(trace.tokens for trace in traces)
    began = min((trace.sent_s for trace in traces), default=0.0)
    duration_s = max((trace.ended_s for trace in traces), default=0.0) - began
    result: dict[str, Any] = {
        "requests": len(traces),
        "failed": sum(errors.values()),
        "errors": dict(errors),
        "tokens": tokens,
        "duration_s": round(duration_s, 4),
        "tokens_per_s": round(tokens / duration_s, 3) if duration_s > 0 else 0.0,
        "ttft_ms": summary(trace.ttft_s for trace in good),
        "itl_ms": summary(chain.from_iterable(gaps(trace.arrivals_s) for trace in good)),
        "e2e_ms": summary(trace.e2e_s for trace in good),
    }
    if objective is not None:
        met = sum(trace.meets(objective) for trace in traces)
        result["met_objective"] = met
        result["goodput_per_s"] = round(met / duration_s, 4) if duration_s > 0 else 0.0
    lags = [lag for trace in good for lag in trace.sampled_to_received_s]
    if lags:
        result["sampled_to_received_ms"] = summary(lags)
    return result
