"""The table about scheduling, from a command line to a document."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.rows import results
from benchmarks.rows.run import chosen
from benchmarks.scheduling.__main__ import parse, results_file
from benchmarks.scheduling.rows import ROWS, reading
from benchmarks.scheduling.scenarios import SCENARIOS

_MACHINE = {
    "cpu": "A CPU",
    "cores": 2,
    "python": "3.11",
    "llama_cpp_python": "0.3",
    "grpcio": "1.85",
    "commit": "abc123",
}


def test_every_row_is_measured_by_exactly_one_scenario() -> None:
    measured = [key for scenario in SCENARIOS for key in scenario.keys]
    assert sorted(measured) == sorted(ROWS)


def test_a_row_that_is_asked_for_brings_its_scenario_alone() -> None:
    (only,) = chosen(["worker_killed_changed"], SCENARIOS)
    assert "worker_killed_failed" in only.keys


def test_figures_of_a_trial_are_kept_apart(tmp_path: Path) -> None:
    whole, trial = results_file(parse([])), results_file(parse(["--quick"]))
    assert whole == results.SCHEDULING
    assert trial != whole
    named = tmp_path / "own.json"
    assert results_file(parse(["--quick", "--json", str(named)])) == named


def test_an_unknown_row_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--only", "fastest"])
    assert "fastest" in capsys.readouterr().err


def test_a_reading_names_the_command_that_repeats_it() -> None:
    made = reading("urgent_ttft_ratio", 1.5, each=[1.23456, 1.5, 1.75])
    assert made.raw["each"] == [1.2346, 1.5, 1.75]
    assert made.commands == ("python -m benchmarks.scheduling --only urgent_ttft_ratio",)


def test_its_table_has_a_place_of_its_own_in_the_document(tmp_path: Path) -> None:
    file, document = tmp_path / "scheduling.json", tmp_path / "performance.md"
    for one in (
        reading("worker_killed_failed", 0.0, each=[0, 0]),
        reading("urgent_ttft_ratio", 2.5, each=[2.25, 2.5, 3.0]),
    ):
        results.store(one, measured_on=_MACHINE, path=file, table=ROWS)
    part = report.PARTS["scheduling"]
    document.write_text(f"{report.BEGIN}\nother\n{report.END}\n{part.begin}\nold\n{part.end}\n")
    arguments = ["--of", "scheduling", "--results", str(file), "--write", str(document)]
    assert report.main(arguments) == 0
    text = document.read_text()
    assert text.startswith(f"{report.BEGIN}\nother\n{report.END}\n{part.begin}\n")
    assert "| ≤ 2 | 2.500 | **no** |\n" in text
    assert "| ≤ 0 requests | 0 requests | yes |\n" in text
    assert text.splitlines()[-4:-2] == [
        "1. `urgent_ttft_ratio`: 2.25, 2.5, 3",
        "2. `worker_killed_failed`: 0, 0",
    ]
    assert "old" not in text
    assert not document.with_suffix(".svg").exists()
