"""Figures of two sides that ran in turn."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.load.stats import median
from benchmarks.rows.pairs import ratio, ratios


def _goodput(run: dict[str, Any]) -> float:
    return float(run["goodput_per_s"])


def _runs(*values: float) -> list[dict[str, Any]]:
    return [{"goodput_per_s": value, "tokens_per_s": 10 * value} for value in values]


def test_each_pair_gives_a_ratio_and_the_row_their_median() -> None:
    ours, theirs = _runs(2.0, 3.0, 8.0), _runs(1.0, 2.0, 2.0)
    assert ratios(ours, theirs, _goodput) == [2.0, 1.5, 4.0]
    assert ratio(ours, theirs) == 2.0


def test_a_pair_in_which_the_other_met_nothing_has_no_ratio() -> None:
    assert ratios(_runs(1.0, 3.0), _runs(0.0, 2.0), _goodput) == [1.5]
    assert math.isnan(median(ratios(_runs(1.0), _runs(0.0), _goodput)))
