"""From figures to a document."""

from __future__ import annotations

import json
import math
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks import report
from benchmarks.rows import results
from benchmarks.rows.scenarios import SCENARIOS
from benchmarks.rows.table import ROWS, Reading, Row
from benchmarks.scheduling.rows import ROWS as SCHEDULING_ROWS

_MACHINE = {
    "cpu": "A CPU",
    "cores": 2,
    "python": "3.11",
    "llama_cpp_python": "0.3",
    "grpcio": "1.85",
    "commit": "abc123",
}


def _stored(path: Path, *readings: Reading) -> dict[str, object]:
    for reading in readings:
        results.store(reading, measured_on=_MACHINE, path=path)
    return results.load(path)


def _ratio(key: str, value: float) -> Reading:
    raw = {
        "ours": [{"tokens_per_s": 91.4, "command": "python serve"}],
        "bare_loop": [{"tokens_per_s": 100.2, "command": "python engine"}],
    }
    return Reading(ROWS[key], value, raw, ("python serve", "python engine"))


def test_every_row_is_measured_by_exactly_one_scenario() -> None:
    measured = [key for scenario in SCENARIOS for key in scenario.keys]
    assert sorted(measured) == sorted(ROWS)


@pytest.mark.parametrize(
    ("direction", "value", "reached"),
    [(">=", 0.9, True), (">=", 0.89, False), ("<=", 0.9, True), ("<=", 0.91, False), ("<=", math.nan, False)],
)
def test_a_target_is_reached_from_its_own_side(direction: str, value: float, reached: bool) -> None:
    assert direction in (">=", "<=")
    row = Row("k", "t", 0.9, ">=" if direction == ">=" else "<=")
    assert row.is_reached(value) is reached


def test_a_row_measured_again_replaces_itself_and_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "results" / "latest.json"
    known = _stored(path, _ratio("shared_c16", 0.8), _ratio("shared_c8", 0.5), _ratio("shared_c8", 0.93))
    assert list(known) == ["environment", "shared_c8", "shared_c16"]
    row = json.loads(path.read_text())["shared_c8"]
    assert row["value"] == 0.93
    assert row["target"] == 0.9
    assert row["reached"] is True
    assert row["commands"] == ["python serve", "python engine"]
    assert row["commit"] == "abc123"


def test_the_report_shows_figures_targets_and_what_is_missed(tmp_path: Path) -> None:
    missed = Reading(ROWS["idle_first_token_p50_ms"], 12.123)
    text = report.table_of(_stored(tmp_path / "l.json", _ratio("shared_c8", 0.934), missed)).text()
    lines = text.splitlines()
    assert lines[-6:-5] == [f"| 2 | {ROWS['shared_c8'].title} | ≥ 0.90 | 0.934 | yes |"]
    assert lines[-2:] == [
        "1. `idle_first_token_p50_ms`",
        "2. `shared_c8`: ours 91; bare loop 100 tokens/s",
    ]
    assert f"| 1 | {missed.row.title} | ≤ 9 ms | 12.12 ms | **no** |" in lines
    assert "2 cores of A CPU, at abc123" in text


def test_a_document_keeps_what_is_around_the_markers(tmp_path: Path) -> None:
    path = tmp_path / "latest.json"
    _stored(path, _ratio("shared_c8", 0.934))
    document = tmp_path / "performance.md"
    document.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    assert report.main(["--results", str(path), "--write", str(document)]) == 0
    assert report.main(["--results", str(path), "--write", str(document)]) == 0
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{report.END}\nafter\n")
    assert "old" not in text
    assert text.count("shared_c8") == 1
    picture = ET.fromstring((tmp_path / "performance.svg").read_text())  # noqa: S314 - our own
    assert picture.tag.endswith("svg")


def _written(tmp_path: Path, document: Path, machine: dict[str, object], *readings: Reading) -> str:
    path = tmp_path / "latest.json"
    path.unlink(missing_ok=True)
    for reading in readings:
        results.store(reading, measured_on=machine, path=path)
    assert report.main(["--results", str(path), "--write", str(document)]) == 0
    return document.read_text()


def test_rows_that_were_not_measured_again_stay_as_they_are(tmp_path: Path) -> None:
    document = tmp_path / "performance.md"
    document.write_text(f"before\n{report.BEGIN}\n{report.END}\nafter\n")
    many = Reading(ROWS["longest_gap_over_median"], 3.5, {"each": [1.25] * 40})
    first = [Reading(ROWS["smollm2_c8"], math.nan), many, _ratio("shared_c8", 0.9), _ratio("shared_c16", 0.8)]
    whole = _written(tmp_path, document, _MACHINE, *first)
    picture = (tmp_path / "performance.svg").read_text()
    assert _written(tmp_path, document, _MACHINE, first[2]) == whole
    assert (tmp_path / "performance.svg").read_text() == picture
    text = _written(tmp_path, document, {**_MACHINE, "commit": "def456"}, Reading(ROWS["smollm2_c8"], 1.25))
    assert text == whole.replace("≥ 1.00 | - | **no** |", "≥ 1.00 | 1.250 | yes |").replace(
        "abc123", "abc123, def456"
    )


def test_rows_of_another_machine_leave(tmp_path: Path) -> None:
    document = tmp_path / "performance.md"
    document.write_text(f"{report.BEGIN}\n{report.END}\n")
    _written(tmp_path, document, _MACHINE, _ratio("shared_c8", 0.9))
    text = _written(tmp_path, document, {**_MACHINE, "cores": 64}, _ratio("shared_c16", 0.8))
    assert "`shared_c16`" in text
    assert "`shared_c8`" not in text


@pytest.mark.parametrize("document", ["no markers", f"{report.END} {report.BEGIN} {report.BEGIN}"])
def test_a_document_without_its_markers_is_left_alone(
    document: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "latest.json"
    _stored(path, _ratio("shared_c8", 0.934))
    file = tmp_path / "d.md"
    file.write_text(document)
    assert report.main(["--results", str(path), "--write", str(file)]) == 1
    assert "needs one line" in capsys.readouterr().err
    assert file.read_text() == document


def test_without_results_there_is_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["--results", str(tmp_path / "none.json")]) == 1
    assert "make bench" in capsys.readouterr().err


def test_the_runs_name_the_server_they_were_held_against(tmp_path: Path) -> None:
    theirs = {"tokens_per_s": 50.0, "command": "python serve", "server": "llama-server built here"}
    raw = {"ours": [{"tokens_per_s": 60.0, "command": "python serve"}], "llama_server": [theirs]}
    rate = Reading(ROWS["smollm2_c8"], 1.2, raw)
    gap = Reading(ROWS["smollm2_itl_p99_c8"], 2.5, {**raw, "each": [2.5]})
    text = report.table_of(_stored(tmp_path / "latest.json", rate, gap)).text()
    assert "`: ours 60; llama.cpp's (llama-server built here) 50 tokens/s" in text
    assert "| ≤ 1.5 | 2.500 | **no** |" in text
    assert "`: 2.5 (llama-server built here)" in text


@pytest.mark.parametrize("table", [ROWS, SCHEDULING_ROWS], ids=["bench", "scheduling"])
def test_no_line_of_a_report_is_longer_than_120_characters(tmp_path: Path, table: dict[str, Row]) -> None:
    runs = [{"tokens_per_s": 12345.6, "command": "", "server": "xllamacpp's wheel, AVX2"}] * 9
    readings = [Reading(row, 321.234, {"ours": runs, "llama_server": runs}) for row in table.values()]
    path = tmp_path / "l.json"
    for reading in readings:
        results.store(reading, measured_on=_MACHINE, path=path, table=table)
    lines = report.table_of(results.load(path)).text().splitlines()
    assert max(map(len, lines)) <= 120
