"""Rounds during which other machines took the cores are made again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from benchmarks.rows.calm import Round, StolenTime, calm_rounds, calmest


def rounds_of(stolen: list[float], n: int) -> tuple[list[Round], list[str]]:
    left = iter(stolen)
    said: list[str] = []

    async def ours() -> dict[str, Any]:
        return {"side": "ours", "stolen": next(left)}

    async def other() -> dict[str, Any]:
        return {"side": "other"}  # where nothing is counted, nothing was stolen

    return asyncio.run(calm_rounds(n, [ours, other], said.append)), said


def stolen_of(rounds: list[Round]) -> list[float]:
    return [ours["stolen"] for ours, _ in rounds]


def test_calm_rounds_are_made_once() -> None:
    rounds, said = rounds_of([0.0, 0.02, 0.01], 3)
    assert stolen_of(rounds) == [0.0, 0.02, 0.01]
    assert said == []


def test_a_disturbed_round_is_made_again() -> None:
    rounds, said = rounds_of([0.0, 0.3, 0.01], 2)
    assert stolen_of(rounds) == [0.0, 0.01]
    assert said == ["  other machines took 30% of the cores: once more"]


def test_where_nothing_is_calm_it_ends_with_the_calmest_in_order() -> None:
    rounds, _ = rounds_of([0.5, 0.1, 0.4, 0.2, 0.6, 0.3], 2)
    assert stolen_of(rounds) == [0.1, 0.2]


def test_either_side_disturbs_a_round() -> None:
    quiet, loud = ({"stolen": 0.0}, {"stolen": 0.1}), ({"stolen": 0.0}, {"stolen": 0.2})
    assert calmest(1, [loud, quiet]) == [quiet]


def test_stolen_time_is_a_share_of_all_cores(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    file.write_text("cpu  100 0 50 800 0 0 0 50 7 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    stolen = StolenTime(file)
    assert stolen.share() == 0.0
    file.write_text("cpu  150 0 50 820 0 0 0 80 9 0\n")
    assert stolen.share() == 0.3


def test_where_it_is_not_counted_it_is_none(tmp_path: Path) -> None:
    assert StolenTime(tmp_path / "none").share() == 0.0
