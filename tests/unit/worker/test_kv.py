"""The account of KV cells is exact."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.engine.kv import CellLedger, OutOfCells

_ACTIONS = st.sampled_from(["use", "release", "move"])


@given(st.lists(st.tuples(_ACTIONS, st.integers(0, 5), st.integers(0, 60))))
def test_never_more_cells_are_used_than_there_are(steps: list[tuple[str, int, int]]) -> None:
    ledger = CellLedger(100)
    used: dict[int, int] = {}
    for action, slot, n in steps:
        if action == "use":
            if sum(used.values()) + n <= 100:
                ledger.use(slot, n)
                used[slot] = used.get(slot, 0) + n
            else:
                with pytest.raises(OutOfCells):
                    ledger.use(slot, n)
        elif action == "release":
            ledger.release(slot)
            used.pop(slot, None)
        elif n % 6 in used:
            with pytest.raises(ValueError, match=f"slot {n % 6} "):
                ledger.move(slot, n % 6)
        else:
            ledger.move(slot, n % 6)
            if slot in used:
                used[n % 6] = used.pop(slot)
        assert ledger.used == sum(used.values()) <= 100
        assert ledger.free == 100 - ledger.used


def test_what_moved_is_released_where_it_is_now() -> None:
    ledger = CellLedger(10)
    ledger.use(1, 4)
    ledger.move(1, 2)
    ledger.release(1)
    assert ledger.used == 4
    ledger.release(2)
    assert ledger.used == 0
