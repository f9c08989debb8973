"""Comparing two checkouts."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.against import stack_of, table_of
from benchmarks.rows.cpu_cost import CPU_MS, per_request_ms, with_cpu
from benchmarks.rows.lab import LabError


async def test_a_folder_without_an_environment_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"inferctl is not there: run `make .venv/.runtime` in"):
        async with stack_of(tmp_path, tmp_path / "model.gguf"):
            pass


def test_the_table_shows_the_median_and_every_round_of_both_sides() -> None:
    figures = {
        "tokens/s ÷ the other's, 8 concurrent": {
            "value": 1.25,
            "shown": {"ours": ["500", "510"], "other": ["400", "401"]},
        },
        "time to first token at idle minus the other's, p99, ms": {
            "value": -0.5,
            "shown": {"ours": ["7.00"], "other": ["7.50"]},
        },
    }
    console = Console(width=200)
    with console.capture() as shown:
        console.print(table_of(figures))
    text = shown.get()
    for expected in ("1.250", "500, 510", "400, 401", "-0.500", "7.00", "7.50"):
        assert expected in text


def test_cpu_time_is_told_per_request_for_processes_that_are_there_all_the_time() -> None:
    before = {"gateway": 1.0, "policy": 2.0}
    after = {"gateway": 1.5, "scheduler": 9.0}
    assert per_request_ms(before, after, 100) == {"gateway": 5.0}


async def test_a_run_is_told_with_the_cpu_time_that_a_process_and_its_children_spent_meanwhile() -> None:
    spin = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\nsys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    async def run() -> dict[str, Any]:
        assert child.stdout is not None
        await asyncio.to_thread(child.stdout.readline)
        return {"requests": 8, "failed": 0}

    result = await with_cpu(run, {"here": os.getpid(), "gone": 2**22 + 1}, also_sent=2)()
    child.communicate(b"")  # its input ends, and so does it
    assert result["failed"] == 0
    assert result[CPU_MS]["here"] > 10.0  # most of 0.3 s, of 10 requests
    assert result[CPU_MS]["gone"] == 0.0
