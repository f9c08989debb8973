"""Figures as tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

_DIGITS = {"": 3, "ms": 2, "s": 2, "requests": 0, "tokens": 0, "texts": 0}

LATENCIES = {
    "ttft_ms": "time to first token",
    "itl_ms": "between tokens",
    "e2e_ms": "whole request",
    "sampled_to_received_ms": "sampled to received",
}


def result_table(result: Mapping[str, Any]) -> Table:
    """The figures of one run."""
    title = (
        f"{result['tokens_per_s']:.1f} tokens/s · {result['requests']} requests, {result['failed']} failed · "
        f"{result['tokens']} tokens in {result['duration_s']:.2f} s"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("milliseconds")
    for name in ("p50", "p90", "p99", "max"):
        table.add_column(name, justify="right")
    for key, label in LATENCIES.items():
        if key in result:
            table.add_row(label, *(_number(value) for value in result[key].values()))
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def rows_table(results: Mapping[str, Any]) -> Table:
    """Tabulate what results/latest.json holds, against the targets."""
    table = Table(title="measured", title_justify="left")
    table.add_column("what")
    table.add_column("target", justify="right")
    table.add_column("measured", justify="right")
    table.add_column("reached")
    marks = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}
    for row in (row for row in results.values() if "title" in row):
        table.add_row(row["title"], target_text(row), value_text(row), marks[row["reached"]])
    return table


def target_text(row: Mapping[str, Any]) -> str:
    """`≥ 0.90`, `≤ 5 ms`, or nothing."""
    if row["target"] is None:
        return ""
    sign = {">=": "≥", "<=": "≤"}[row["direction"]]
    number = f"{row['target']:.2f}" if row["direction"] == ">=" else f"{row['target']:g}"
    return f"{sign} {number} {row['unit']}".rstrip()


def value_text(row: Mapping[str, Any]) -> str:
    """`0.934`, `3.21 ms`, `87.2 MB`, `0 requests`, or `-` for what could not be measured."""
    if row["value"] is None:
        return "-"
    digits = _DIGITS.get(row["unit"], 1)
    return f"{row['value']:.{digits}f} {row['unit']}".rstrip()
