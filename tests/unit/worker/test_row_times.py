"""What a step takes by its rows."""

from __future__ import annotations

import random

import pytest

from inferflux.worker.engine.plan.row_times import RowTimes


def stairs(rows: int) -> float:
    """Tiles of four rows; a row alone is computed in another way."""
    return 0.004 if rows == 1 else 0.006 + 0.002 * -(-rows // 4)


def times_of(*sizes: int) -> RowTimes:
    times = RowTimes(63)
    times.know({n: stairs(n) for n in sizes})
    return times


def test_what_was_not_measured_is_interpolated_and_goes_on_as_before() -> None:
    times = times_of(1, 4, 8)
    assert times.seconds_of(4) == pytest.approx(stairs(4))
    assert times.seconds_of(6) == pytest.approx(0.009)
    assert times.seconds_of(15) == pytest.approx(0.016)
    times = RowTimes(63)
    times.know({2: 0.01})
    assert times.seconds_of(40) == pytest.approx(0.01)


def test_nothing_is_known_without_a_measurement() -> None:
    times = RowTimes(63)
    times.know({})
    times.observe(3, 0.1)
    assert not times.is_known
    assert times_of(1, 2).is_known


def test_steps_of_each_number_of_rows_find_their_own_time() -> None:
    times, delays = times_of(1, 63), random.Random(1)
    for _ in range(300):
        rows = delays.choice((1, 3, 4, 5, 8))
        times.observe(rows, stairs(rows) * delays.uniform(0.9, 1.1))
    for rows in (1, 3, 4, 5, 8):
        assert times.seconds_of(rows) == pytest.approx(stairs(rows), rel=0.1)


def test_where_all_steps_take_longer_those_that_were_not_made_do_as_well() -> None:
    times = times_of(1, 2, 4, 8)
    for _ in range(100):
        times.observe(1, 3 * stairs(1))
    assert times.seconds_of(1) == pytest.approx(3 * stairs(1), rel=0.01)
    assert times.seconds_of(8) > 2 * stairs(8)


def test_one_disturbed_step_changes_little() -> None:
    times = times_of(1, 2, 4, 8)
    times.observe(4, 1.0)
    assert times.seconds_of(4) < 1.15 * stairs(4)
    assert times.seconds_of(8) < 1.1 * stairs(8)
