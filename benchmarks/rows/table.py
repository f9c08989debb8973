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


RATES = (2.0, 3.5)
"""Requests per second of the open loop."""


def rate_key(figure: str, rate: float) -> str:
    """The row of the open loop that tells this figure at that rate."""
    return f"open_loop_{figure}_vs_llama_server_r{rate:g}"


def _ratios(prefix: str, title: str, target: float | None, direction: Direction = ">=") -> list[Row]:
    return [Row(f"{prefix}_c{n}", f"{title}, {n} concurrent", target, direction) for n in (8, 16)]


def _open_loop(figure: str, title: str, target: float, direction: Direction) -> list[Row]:
    return [Row(rate_key(figure, rate), f"{title}, {rate:g} a second", target, direction) for rate in RATES]


def _ms(key: str, title: str, target: float) -> Row:
    return Row(key, title, target, "<=", "ms")


_ROWS = [
    *_ratios("shared", "tokens/s through gRPC ÷ bare loop, bench model, all sharing two cores", 0.90),
    *_ratios("worker_per_core", "the same with a worker of one thread for each core", 0.90),
    *_ratios("pinned", "engine and bare loop alone on one core, all else on the other", 0.97),
    *_ratios("demo_vs_llama_server", "tokens/s ÷ llama.cpp's own server, demo model, equal clients", 1.0),
    *_ratios("demo_grpcio_vs_llama_server", "the same, our client being grpcio", 1.0),
    *_ratios(
        "demo_worker_per_core_vs_llama_server", "the same with a worker for each core, equal clients", 1.0
    ),
    *_ratios("demo_worker_per_core_grpcio_vs_llama_server", "the same, our client being grpcio", 1.0),
    *_ratios("bench_vs_llama_server", "tokens/s ÷ llama.cpp's own server, bench model, equal clients", 1.0),
    *_ratios("bench_grpcio_vs_llama_server", "the same, our client being grpcio", 1.0),
    *_ratios("bench_ttft_vs_llama_server", "equal clients: time to first token ÷ its, p50", None, "<="),
    *_ratios("bench_itl_p99_vs_llama_server", "equal clients: time between tokens ÷ its, p99", 2.0, "<="),
    *_ratios("demo_sampled_vs_llama_server", "tokens/s ÷ llama.cpp's own server, demo model, sampled", 1.1),
    *_ratios("demo_sampled_ttft_vs_llama_server", "the same: time to first token ÷ its, p50", None, "<="),
    *_ratios("demo_sampled_itl_p99_vs_llama_server", "the same: time between tokens ÷ its, p99", None, "<="),
    *_open_loop("goodput", "open loop, bench model: goodput ÷ llama.cpp's own server", 1.8, ">="),
    *_open_loop("itl_p99", "the same: time between tokens ÷ its, p99", 0.45, "<="),
    _ms("ttft_added_idle_p50_ms", "time to first token added at idle, bench model, p50", 5.0),
    _ms("ttft_added_idle_p99_ms", "time to first token added at idle, bench model, p99", 15.0),
    _ms("demo_ttft_added_idle_p50_ms", "time to first token added at idle, demo model, p50", 5.0),
    _ms("demo_ttft_added_idle_p99_ms", "time to first token added at idle, demo model, p99", 15.0),
    _ms("sampled_to_received_p50_ms", "sampled to received, 8 streams, bench model, p50", 2.0),
    _ms("demo_sampled_to_received_p50_ms", "sampled to received, 8 streams, demo model, p50", 2.0),
    Row("longest_gap_over_median", "longest gap of 4 decodes in a 4,000-token prompt ÷ median", 4.0, "<="),
    Row("long_prompt_ttft_ratio", "that prompt's time to first token ÷ (alone + decodes' share)", 1.5, "<="),
    Row("llama_server_longest_gap_over_median", "the longest gap with llama.cpp's own server", None, "<="),
    Row("llama_server_long_prompt_ttft_ratio", "the prompt's time with llama.cpp's own server", None, "<="),
    Row("rss_mb_gateway", "resident memory of the idle gateway", 120.0, "<=", "MB"),
    Row("rss_mb_scheduler", "resident memory of the idle scheduler", 120.0, "<=", "MB"),
    Row("rss_mb_policy", "resident memory of the idle policy service", 120.0, "<=", "MB"),
    Row("rss_mb_gateway_tokenizer_process", "resident memory of a tokenizer process", None, "<=", "MB"),
    Row("client_us_per_token_grpc", "CPU time per token of the grpcio client", None, "<=", "µs"),
    Row("client_us_per_token_lean_grpc", "CPU time per token of the lean gRPC client", None, "<=", "µs"),
    Row("client_us_per_token_sse", "CPU time per token of the HTTP client", None, "<=", "µs"),
]

ROWS: dict[str, Row] = {row.key: row for row in _ROWS}
"""Every row by its key, in the order of the table."""
