"""Cached cells stay while they are worth what they cost, and while they cost next to nothing."""

from __future__ import annotations

from inferflux.worker.engine.kv.rent import Rent

CELL_S = 1e-6
STEP_S = 0.01


def serve(rent: Rent, steps: int, *, cached_cells: int = 0, rows: int = 8) -> None:
    for _ in range(steps):
        rent.step(STEP_S, rows=rows, n_prefill=0, cached_cells=cached_cells)


def test_unused_prefixes_are_cut_to_a_small_part_of_the_time() -> None:
    rent = Rent(CELL_S)
    assert rent.affordable_cells() is None
    serve(rent, 1000, cached_cells=1000)
    most = rent.affordable_cells()
    assert most is not None
    assert 0 < most * 8 * CELL_S <= 0.02 * STEP_S


def test_hits_pay_for_cells_that_stay() -> None:
    rent = Rent(CELL_S)
    rent.step(1.0, rows=0, n_prefill=1000, cached_cells=0)
    for _ in range(100):
        serve(rent, 10, cached_cells=1000)
        rent.hit(500)
    assert rent.affordable_cells() is None


def test_hits_of_long_ago_do_not_pay_for_ever() -> None:
    rent = Rent(CELL_S)
    rent.step(1.0, rows=0, n_prefill=1000, cached_cells=0)
    for _ in range(10_000):
        rent.hit(1000)
    serve(rent, 10_000, cached_cells=1000)
    assert rent.affordable_cells() is not None


def test_debts_are_soon_paid() -> None:
    rent = Rent(CELL_S)
    serve(rent, 100_000, cached_cells=1000)
    serve(rent, 6000)
    assert rent.affordable_cells() is None


def test_where_cells_cost_nothing_all_may_stay() -> None:
    rent = Rent(0.0)
    serve(rent, 100_000, cached_cells=100_000)
    assert rent.affordable_cells() is None


def test_while_nothing_decodes_cells_cost_nothing() -> None:
    rent = Rent(CELL_S)
    serve(rent, 10_000, cached_cells=1000)
    assert rent.affordable_cells() is not None
    serve(rent, 1000, cached_cells=1000, rows=0)
    assert rent.affordable_cells() is None


def test_short_steps_between_prompts_do_not_make_room_for_what_prompts_pay_for() -> None:
    """A prompt of 128 tokens and one decode, again and again: the decode alone could afford much more."""
    rent = Rent(CELL_S)
    for _ in range(1000):
        rent.step(128 * STEP_S / 8, rows=128, n_prefill=128, cached_cells=1000)
        rent.step(STEP_S, rows=1, n_prefill=0, cached_cells=1000)
    most = rent.affordable_cells()
    assert most is not None
    assert most * 129 * CELL_S <= 0.01 * (17 * STEP_S)
