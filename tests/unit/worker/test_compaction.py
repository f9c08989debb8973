"""When filled KV cells are moved together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.engine.kv.compaction import Compaction, MoveCost

CELL_S = 1e-6
HOLES = 10_240, 512
# What a token loses to them: the step goes through 9,472 cells more than it needs to.
LOST_S = (10_240 - 768) * CELL_S


def steps_until_due(
    made: Compaction, cells: tuple[int, int], rows: int = 1, most: int = 10_000
) -> int | None:
    """Of cells of this width, of which the second number is filled."""
    width, used = cells
    return next((n for n in range(1, most) if made.is_due(rows, width=width, used=used)), None)


def test_cells_are_moved_once_the_holes_have_cost_as_much_as_a_move() -> None:
    made = Compaction(CELL_S, MoveCost(5.25 * LOST_S, 5.25 * LOST_S / 512), longest_s=1.0)
    assert steps_until_due(made, HOLES) == 11
    made.moved(512, 5.5 * LOST_S)
    assert steps_until_due(made, HOLES) == 6, "the last move took less than expected"
    made.moved(512, 5.5 * LOST_S)
    assert steps_until_due(made, HOLES, rows=3) == 2


def test_holes_count_where_they_may_be_more_than_half_of_what_a_step_goes_through() -> None:
    made = Compaction(CELL_S, MoveCost(1e-9, 0.0), longest_s=1.0)
    assert steps_until_due(made, (2 * 768, 512), most=100) is None
    assert steps_until_due(made, (2 * 768 + 1, 512), most=100) == 1


def test_cells_without_holes_stay_though_holes_have_cost_much_before() -> None:
    made = Compaction(CELL_S, MoveCost(2 * LOST_S, 0.0), longest_s=1.0)
    assert steps_until_due(made, HOLES, most=2) is None
    assert steps_until_due(made, (512, 512), rows=16, most=10) is None
    assert steps_until_due(made, HOLES, most=2) == 1


@pytest.mark.parametrize(
    ("cell_s", "cost", "longest_s"),
    [
        (CELL_S, MoveCost(0.3, 0.0), 0.2),
        (CELL_S, MoveCost(0.1, 0.1 / 500), 0.2),
        (CELL_S, None, 1.0),
        (0.0, MoveCost(0.01, 0.0), 1.0),
        (CELL_S, MoveCost(0.01, 0.0), 0.0),
    ],
)
def test_cells_stay_where_a_move_would_hold_up_a_step_for_too_long_or_gains_nothing(
    cell_s: float, cost: MoveCost | None, longest_s: float
) -> None:
    assert steps_until_due(Compaction(cell_s, cost, longest_s), HOLES) is None


@given(st.lists(st.tuples(st.integers(0, 16), st.integers(0, 20_000), st.integers(0, 20_000)), max_size=200))
def test_moves_take_no_longer_than_holes_have_cost(steps: list[tuple[int, int, int]]) -> None:
    cost = MoveCost(0.01, 1e-6)
    made = Compaction(CELL_S, cost, longest_s=1.0)
    lost_s = moved_s = 0.0
    for rows, width, used in steps:
        lost_s += width * rows * CELL_S
        if made.is_due(rows, width=max(width, used), used=used):
            moved_s += cost.of(used)
            made.moved(used, cost.of(used))
    assert moved_s <= lost_s
