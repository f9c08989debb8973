"""What the ledger counts is compared with what llama.cpp has, now and then."""

from __future__ import annotations

import pytest

from inferflux.worker.engine.memory.ledger_check import CheckTimes, difference


@pytest.mark.parametrize(
    ("counted", "positions", "holds_all", "is_same"),
    [
        (0, (-1, -1), True, True),
        (10, (0, 9), True, True),
        (10, (0, 8), True, False),
        (10, (0, 10), True, False),
        (10, (1, 9), True, False),
        (10, (-1, -1), True, False),
        (0, (0, 0), True, False),
        (10, (6, 9), False, True),
        (10, (6, 8), False, False),
        (10, (-1, -1), False, False),
        (0, (6, 9), False, False),
    ],
)
def test_what_differs_is_found(
    counted: int, positions: tuple[int, int], holds_all: bool, is_same: bool
) -> None:
    assert (difference(3, counted, positions, holds_all=holds_all) is None) == is_same


def test_a_difference_is_told_in_words() -> None:
    assert str(difference(3, 10, (2, 9), holds_all=True)) == (
        "10 cells were counted for seq_id 3, llama.cpp has positions 2 to 9"
    )
    assert str(difference(3, 10, (-1, -1), holds_all=True)).endswith("llama.cpp has none")


def test_an_idle_engine_checks_once_and_a_busy_one_every_ten_seconds() -> None:
    times = CheckTimes(0.0)
    assert not times.is_due(100.0, is_idle=True), "nothing has happened"
    times.stepped()
    assert not times.is_due(9.9, is_idle=False)
    assert times.is_due(10.0, is_idle=False)
    assert not times.is_due(100.0, is_idle=True), "nothing has happened since"
    times.stepped()
    assert not times.is_due(19.9, is_idle=False)
    assert times.is_due(19.9, is_idle=True)
    times.stepped()
    assert not times.is_due(29.8, is_idle=False)
    assert times.is_due(29.9, is_idle=False)
