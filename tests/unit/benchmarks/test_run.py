"""What of the command line decides how much is measured."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console

from benchmarks.rows import lab
from benchmarks.rows.lab import FULL, QUICK, Lab, LabError, Script, need_bench_model
from benchmarks.rows.run import parse, plan_of


def test_a_trial_is_one_pair_and_a_result_three() -> None:
    assert (plan_of(parse([])), plan_of(parse(["--quick"]))) == (FULL, QUICK)
    assert (FULL.pairs, QUICK.pairs) == (3, 1)


def test_more_pairs_may_be_asked_for() -> None:
    plan = plan_of(parse(["--pairs", "9"]))
    assert (plan.pairs, plan.waves) == (9, FULL.waves)


def test_no_pair_is_too_few(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--pairs", "0"])
    assert "--pairs: must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("script", get_args(Script))
def test_a_script_that_a_measurement_runs_is_there(script: str) -> None:
    assert find_spec(f"benchmarks.{script}")


def test_a_benchmark_whose_model_was_not_fetched_says_how_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(LabError, match="make models"):
        need_bench_model()


async def test_a_large_model_that_is_there_is_used_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = tmp_path / "large.gguf"
    model.write_bytes(b"written before")
    monkeypatch.setattr(lab, "_LARGE_MODEL", model)
    assert await Lab(QUICK, Console()).large_model() == model
    assert model.read_bytes() == b"written before"
