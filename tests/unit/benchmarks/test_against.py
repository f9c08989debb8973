"""Comparing two checkouts."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.against import stack_of, table_of
from benchmarks.lab import LabError


async def test_a_folder_without_an_environment_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"inferctl is not there: run `make .venv/.runtime` in"):
        async with stack_of(tmp_path, tmp_path / "model.gguf"):
            pass


def test_the_table_shows_the_median_and_every_round_of_both_sides() -> None:
    figures = {
        "tokens/s ÷ the other's, 8 concurrent": {
            "value": 1.25,
            "ours": [{"tokens_per_s": 500.0}, {"tokens_per_s": 510.2}],
            "other": [{"tokens_per_s": 400.0}, {"tokens_per_s": 401.0}],
        },
        "time to first token at idle minus the other's, p99, ms": {
            "value": -0.5,
            "ours": [{"ttft_ms": {"p50": 1.0, "p99": 7.0}}],
            "other": [{"ttft_ms": {"p50": 2.0, "p99": 7.5}}],
        },
    }
    console = Console(width=200)
    with console.capture() as shown:
        console.print(table_of(figures))
    text = shown.get()
    for expected in ("1.250", "500, 510", "400, 401", "-0.500", "7.00", "7.50"):
        assert expected in text
