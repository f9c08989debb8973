"""The rows of the table: what is measured, against what target."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

Direction = Literal[">=", "<="]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        key: its name in results/latest.json.
        target: None where the figure is there for comparison only.
        unit: "" for a ratio.
    """

    key: str
    title: str
    target: float | None
    direction: Direction = ">="
    unit: str = ""

    def is_reached(self, value: float) -> bool | None:
        """Return whether `value` is as good as the target; None without one. Not a number reaches nothing."""
        if self.target is None:
            return None
        if math.isnan(value):
            return False
        return value >= self.target if self.direction == ">=" else value <= self.target


@dataclass(frozen=True, slots=True)
class Reading:
    """A row's figure, and everything it was made of."""

    row: Row
    value: float
    raw: dict[str, Any] = field(default_factory=dict)
    commands: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        row = self.row
        return {
            "title": row.title,
            "value": None if math.isnan(self.value) else round(self.value, 4),
            "unit": row.unit,
            "direction": row.direction,
            "target": row.target,
            "reached": row.is_reached(self.value),
            "commands": list(self.commands),
            "raw": self.raw,
        }


CONCURRENCIES = (1, 8, 16)
"""Requests at a time of the closed loops."""


def _throughputs(key: str, title: str, *targets: float) -> list[Row]:
    """Tokens/s with each number of requests at a time."""
    counted = zip(CONCURRENCIES, targets, strict=True)
    return [Row(f"{key}_c{n}", f"{title}, {n} concurrent", target) for n, target in counted]


def _latencies(key: str, title: str, target: float) -> list[Row]:
    """The p99 of a time beside those tokens/s."""
    return [Row(f"{key}_c{n}", f"{title}, {n} concurrent", target, "<=") for n in CONCURRENCIES]


_ROWS = [
    *_throughputs("demo_sampled", "tokens/s ÷ llama.cpp's server, demo model, sampled", 0.9, 1.0, 1.1),
    *_throughputs("smollm2", "tokens/s ÷ llama.cpp's server, SmolLM2, greedy", 1.0, 1.0, 1.0),
    *_latencies("smollm2_itl_p99", "the same: time between tokens ÷ its, p99", 1.5),
    *_latencies("smollm2_ttft_p99", "the same: time to first token ÷ its, p99", 1.0),
    *_throughputs("smollm2_sampled", "tokens/s ÷ llama.cpp's server, SmolLM2, sampled", 1.0, 1.0, 1.0),
    *_latencies("smollm2_sampled_itl_p99", "the same: time between tokens ÷ its, p99", 1.5),
    *_latencies("smollm2_sampled_ttft_p99", "the same: time to first token ÷ its, p99", 1.0),
    Row("large_vocabulary_c1", "tokens/s ÷ llama.cpp's server, 0.5B, 128,256 words, one stream", 0.97),
    Row("smollm2_busy_c1", "tokens/s ÷ llama.cpp's server, SmolLM2, one stream beside two busy loops", 0.9),
    Row("demo_busy_c1", "the same, demo model", 0.9),
    Row("idle_first_token_p50_ms", "first token at idle, demo model, 7 tokens, p50", 9.0, "<=", "ms"),
    Row("longest_gap_over_median", "longest gap of 4 decodes in a 4,000-token prompt ÷ median", 4.0, "<="),
    Row("long_prompt_ttft", "that prompt's time to first token ÷ llama.cpp's server's", 1.2, "<="),
    Row("open_loop_goodput", "open loop, SmolLM2, 1.5 a second: goodput ÷ llama.cpp's server's", 1.8),
    Row("open_loop_itl_p99", "the same: time between tokens ÷ its, p99", 0.45, "<="),
    Row("shared_c8", "tokens/s through gRPC ÷ bare loop, SmolLM2, 8 concurrent", 0.9),
    Row("shared_c16", "tokens/s through gRPC ÷ bare loop, SmolLM2, 16 concurrent", 0.9),
    Row("rss_mb_gateway", "resident memory of the idle gateway", 120.0, "<=", "MB"),
    Row("rss_mb_scheduler", "resident memory of the idle scheduler", 120.0, "<=", "MB"),
    Row("rss_mb_policy", "resident memory of the idle policy service", 120.0, "<=", "MB"),
    Row("rss_mb_gateway_tokenizer_process", "resident memory of a tokenizer process", None, "<=", "MB"),
]

ROWS: dict[str, Row] = {row.key: row for row in _ROWS}
"""Every row by its key, in the order of the table."""
