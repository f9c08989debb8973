"""How a chaos run is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.report import Report, Tally, summary
from chaos.transcript import Transcript
from chaos.workload import Order


def transcript(**facts: object) -> Transcript:
    told = Transcript(Order("r", 3, 1, 0, 0), "r", [1, 2], began_s=0.0)
    for name, value in facts.items():
        setattr(told, name, value)
    return told


def test_the_summary_is_one_line_with_everything_in_it() -> None:
    tally = Tally()
    tally.add(transcript(token_ids=[1, 2], epochs={1, 2}, resumes=1, longest_silence_s=2.5, has_left=True))
    tally.add(transcript(failure="F"))
    line = summary(seed=7, seconds=60, tally=tally, faults={"worker": 2, "nats": 1}, skipped=1, breaches=1)
    assert line == (
        "chaos: seed 7, 60 s: 2 requests (1 left, 1 failed), 2 tokens, 1 moved, 1 resumed, "
        "longest silence 2.5 s, 3 faults (nats 1, worker 2, 1 skipped): 1 BREACH"
    )


def test_an_excused_failure_is_counted_as_such() -> None:
    tally = Tally()
    tally.add(transcript(failure="F", is_excused=True))
    assert tally.ends == {"excused": 1}


def test_breaches_are_explained_and_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(tmp_path, is_verbose=False)
    report.at(3.25)
    report.event("kill nats")
    report.ended(transcript(failure="NO_WORKER: none [left]"))
    report.close("the line", tmp_path)
    told = capsys.readouterr().out
    assert "r at 3.2 s: failed: NO_WORKER: none [left] (priority 0, 0 tokens" in told
    assert f"logs: {tmp_path}" in told
    assert told.endswith("the line\n")
    timeline = (tmp_path / "timeline.log").read_text()
    assert "3.25 kill nats" in timeline
    assert "BREACH r at" in timeline


def test_a_run_without_breach_is_a_single_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(tmp_path, is_verbose=False)
    report.event("kill nats")
    report.close("the line", None)
    assert capsys.readouterr().out == "the line\n"
